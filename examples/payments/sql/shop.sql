-- The shop's own tables. `outbox-relay migrate` creates the outbox and the idempotency keys.

-- A payment, starting with its first phase.
CREATE TABLE IF NOT EXISTS payment (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reference text   NOT NULL,                    -- the client's reference, such as an invoice number
    account   text   NOT NULL,
    cents     bigint NOT NULL CHECK (cents > 0),
    status    text   NOT NULL DEFAULT 'started',  -- then charged, then done or declined
    charge    bigint,                             -- the provider's number for the charge
    done_by   text                                -- the request itself, or the completer
);

-- The ledger. A real one would also have a unique index on the payment. Here, only the idempotency key prevents duplicates, so
-- that a mistake becomes visible.
CREATE TABLE IF NOT EXISTS ledger_entry (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payment   bigint NOT NULL,
    reference text   NOT NULL,
    account   text   NOT NULL,
    cents     bigint NOT NULL
);
