-- The payment provider's tables. In reality, they are in another system.
CREATE SCHEMA IF NOT EXISTS provider;

CREATE TABLE IF NOT EXISTS provider.charge (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         text    NOT NULL UNIQUE,          -- its own idempotency key
    reference   text    NOT NULL,
    cents       bigint  NOT NULL,
    approved    boolean NOT NULL,
    times_asked bigint  NOT NULL DEFAULT 1
);
