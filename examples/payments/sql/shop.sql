-- The shop's own tables. The outbox and the idempotency keys beside them are made by `outbox-relay migrate`.

-- A payment from its first phase on.
CREATE TABLE IF NOT EXISTS payment (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reference text   NOT NULL,                    -- what the client calls it, such as the number of an invoice
    account   text   NOT NULL,
    cents     bigint NOT NULL CHECK (cents > 0),
    status    text   NOT NULL DEFAULT 'started',  -- then charged, then done or declined
    charge    bigint,                             -- the provider's number of it
    done_by   text                                -- the request itself, or the completer
);

-- What was paid. A real one would have a unique index on the payment as well; here nothing but the idempotency key keeps a
-- payment from standing in it twice, so that a mistake shows.
CREATE TABLE IF NOT EXISTS ledger_entry (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payment   bigint NOT NULL,
    reference text   NOT NULL,
    account   text   NOT NULL,
    cents     bigint NOT NULL
);
