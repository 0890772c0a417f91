// Adds up the payments of each customer. A record that arrives again changes nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"example.com/shop"
)

const subscriber = "totals-go" // the consumer group, and the name in the inbox

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := consume(ctx); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err) // after a restart, the record is read again
	}
}

func consume(ctx context.Context) error {
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(context.Background())
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Getenv("KAFKA")), kgo.ConsumeTopics(os.Getenv("TOPIC")), kgo.ConsumerGroup(subscriber),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // a new group reads the records that are already there
		kgo.DisableAutoCommit(),                           // offsets are committed after the effect
		kgo.SessionTimeout(10*time.Second),                // after a crash, another consumer takes over after this time
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if err := process(ctx, db, record); err != nil {
				return err
			}
			if err := client.CommitRecords(ctx, record); err != nil {
				return err
			}
		}
	}
}

func process(ctx context.Context, db *pgx.Conn, record *kgo.Record) error {
	headers := map[string]string{}
	for _, header := range record.Headers {
		headers[header.Key] = string(header.Value)
	}
	if headers["event_type"] != "OrderPaid" {
		return nil
	}
	var event shop.OrderPaid
	if err := json.Unmarshal(record.Value, &event); err != nil {
		return err
	}
	outcome := "duplicate"
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// The mark and the effect are in one transaction. If the event is already marked, its effect has been committed.
		var first bool
		err := tx.QueryRow(ctx, "SELECT inbox_receive($1, $2)", subscriber, headers["event_id"]).Scan(&first)
		if err != nil || !first {
			return err
		}
		outcome = "added"
		_, err = tx.Exec(ctx, `INSERT INTO customer_total AS t VALUES ($1, $2)
			ON CONFLICT (customer) DO UPDATE SET cents = t.cents + excluded.cents`, event.Customer, event.Cents)
		return err
	})
	if err == nil {
		fmt.Println(outcome, headers["event_id"])
	}
	return err
}
