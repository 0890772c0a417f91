// Pays an order. The change and its event are committed together, or neither is.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"

	"example.com/shop"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) != 2 {
		return errors.New("usage: pay ORDER")
	}
	orderID, err := strconv.ParseInt(os.Args[1], 10, 64)
	if err != nil {
		return err
	}
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer connection.Close(ctx)

	// BeginFunc commits if the function returns nil, and rolls back otherwise.
	var eventID string
	err = pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error {
		eventID, err = shop.Pay(ctx, tx, orderID)
		return err
	})
	if err == nil {
		fmt.Println("committed event", eventID)
	}
	return err
}
