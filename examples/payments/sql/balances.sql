-- The consumer's tables. `outbox-relay migrate --with inbox` creates its inbox.

-- Each event that was applied. As in the ledger, there is no unique index, so that only the inbox prevents duplicates.
CREATE TABLE IF NOT EXISTS posting (
    event_id  text   NOT NULL,
    reference text   NOT NULL,
    account   text   NOT NULL,
    cents     bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS balance (account text PRIMARY KEY, cents bigint NOT NULL);

-- The number of records that each consumer has read, in committed transactions.
CREATE TABLE IF NOT EXISTS consumed (
    consumer   text   PRIMARY KEY,
    records    bigint NOT NULL,
    duplicates bigint NOT NULL
);

-- Records without a valid payment, for inspection. They must not stop the others.
CREATE TABLE IF NOT EXISTS unreadable_record (
    place  text PRIMARY KEY,                      -- topic, partition and offset
    reason text NOT NULL,
    key    bytea,
    value  bytea
);
