// An HTTP API whose requests are safe to repeat: POST /orders/{id}/payment with an Idempotency-Key.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/shop"
)

const beginWithin = 10 * time.Second

type api struct{ db *pgxpool.Pool }

func main() {
	db, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /orders/{id}/payment", api{db}.payment)
	log.Fatal(http.ListenAndServe(os.Getenv("LISTEN"), nil))
}

func (a api) payment(w http.ResponseWriter, r *http.Request) {
	ctx, key := r.Context(), r.Header.Get("Idempotency-Key")
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	orderID, idErr := strconv.ParseInt(r.PathValue("id"), 10, 64)
	isInvalid := func(c rune) bool { return c < ' ' || c > '~' }
	if err != nil || idErr != nil || key == "" || len(key) > 255 || strings.ContainsFunc(key, isInvalid) {
		http.Error(w, "send an order ID and a key of 1 to 255 printable ASCII characters", http.StatusBadRequest)
		return
	}
	scope := r.Method + " " + r.URL.Path // with several users, add the user, so that they do not share keys
	fingerprint := sha256.Sum256(body)

	// In a separate transaction, so that other requests see the lock immediately. If the client disconnects, the call is not
	// cancelled: its lock would stay. The work that follows ends at once, and releases the lock.
	begin, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginWithin)
	defer cancel()
	var outcome string
	var token *string
	var wait *float64
	var status *int
	var stored []byte
	err = a.db.QueryRow(begin, `SELECT outcome, token::text, retry_after_seconds, status, body
		FROM idempotency_begin($1, $2, $3, interval '30 seconds')`, scope, key, fingerprint[:],
	).Scan(&outcome, &token, &wait, &status, &stored)
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case outcome == "mismatch":
		http.Error(w, "the key was used for another request", http.StatusUnprocessableEntity)
	case outcome == "in_progress":
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(*wait))))
		http.Error(w, "the first request is in progress", http.StatusConflict)
	case outcome == "replay":
		w.Header().Set("Idempotent-Replayed", "true")
		answer(w, *status, stored)
	default:
		a.first(ctx, w, orderID, scope, key, *token)
	}
}

// first makes the payment and stores its response in one transaction.
func (a api) first(ctx context.Context, w http.ResponseWriter, orderID int64, scope, key, token string) {
	var response []byte
	err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
		eventID, err := shop.Pay(ctx, tx, orderID)
		if err != nil {
			return err
		}
		response, err = json.Marshal(map[string]any{"order_id": orderID, "event_id": eventID})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT idempotency_finish($1, $2, $3, 201, NULL, $4)", scope, key, token, response)
		return err
	})
	if err == nil {
		answer(w, http.StatusCreated, response)
		return
	}
	// The client can then repeat the request at once. If the response was committed after all, it is kept.
	// If this takes too long, the lock expires by itself.
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginWithin)
	defer cancel()
	_, _ = a.db.Exec(release, "SELECT idempotency_release($1, $2, $3)", scope, key, token)
	if errors.Is(err, shop.ErrRefused) {
		http.Error(w, err.Error(), http.StatusPaymentRequired)
	} else {
		log.Print(err)
		http.Error(w, "try again", http.StatusInternalServerError)
	}
}

func answer(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s\n", body)
}
