// Package shop pays orders.
package shop

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// ErrRefused means that the order is not open, or that the account balance is too low.
var ErrRefused = errors.New("payment refused")

// OrderPaid is the payload of the event.
type OrderPaid struct {
	OrderID  int64  `json:"order_id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// Pay pays an order and inserts its event, both in the caller's transaction. It returns the event ID.
func Pay(ctx context.Context, tx pgx.Tx, orderID int64) (eventID string, err error) {
	// Lock the order first, so that the writers of this key take turns and its events are in commit order.
	event := OrderPaid{OrderID: orderID}
	err = tx.QueryRow(ctx,
		"UPDATE customer_order SET status = 'paid' WHERE id = $1 AND status = 'placed' RETURNING customer, cents",
		orderID).Scan(&event.Customer, &event.Cents)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrRefused
	} else if err != nil {
		return "", err
	}

	// Then insert the event in the same transaction. pgx encodes the struct as JSON.
	err = tx.QueryRow(ctx, "SELECT outbox_enqueue('order', $1, 'OrderPaid', $2)::text",
		strconv.FormatInt(orderID, 10), event).Scan(&eventID)
	if err != nil {
		return "", err
	}

	// If the balance is too low, the caller rolls back the order and the event too.
	done, err := tx.Exec(ctx, "UPDATE account SET cents = cents - $1 WHERE customer = $2 AND cents >= $1",
		event.Cents, event.Customer)
	if err == nil && done.RowsAffected() == 0 {
		err = ErrRefused
	}
	return eventID, err
}
