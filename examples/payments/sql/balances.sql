-- The consumer's tables. Its inbox beside them is made by `outbox-relay migrate --with inbox`.

-- Each event that had its effect. No unique index, as in the ledger: it is the inbox that has to do it.
CREATE TABLE IF NOT EXISTS posting (
    event_id  text   NOT NULL,
    reference text   NOT NULL,
    account   text   NOT NULL,
    cents     bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS balance (account text PRIMARY KEY, cents bigint NOT NULL);

-- What each consumer has read, in transactions that were committed.
CREATE TABLE IF NOT EXISTS consumed (
    consumer   text   PRIMARY KEY,
    records    bigint NOT NULL,
    duplicates bigint NOT NULL
);

-- Records that hold no payment, for a person to look at. They are not to stop the others.
CREATE TABLE IF NOT EXISTS unreadable_record (
    place  text PRIMARY KEY,                      -- topic, partition and offset
    reason text NOT NULL
);
