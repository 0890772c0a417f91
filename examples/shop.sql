-- The tables of the programs in go/, java/, python/, rust/ and typescript/. `outbox-relay migrate` creates the outbox, the inbox and the
-- idempotency keys.

-- The shop: what each customer may spend, and the orders.
CREATE TABLE account (
    customer text   PRIMARY KEY,
    cents    bigint NOT NULL CHECK (cents >= 0)
);
CREATE TABLE customer_order (
    id       bigint PRIMARY KEY,
    customer text   NOT NULL REFERENCES account,
    cents    bigint NOT NULL CHECK (cents > 0),
    status   text   NOT NULL DEFAULT 'placed'
);
INSERT INTO account VALUES ('ada', 100000);
INSERT INTO customer_order (id, customer, cents) VALUES (1, 'ada', 1200), (2, 'ada', 4500), (3, 'ada', 999999), (4, 'ada', 700),
    (5, 'ada', 800);

-- The consumer: the sum of the payments of each customer. In production, it is in another database with its own inbox.
CREATE TABLE customer_total (
    customer text   PRIMARY KEY,
    cents    bigint NOT NULL
);

-- The role of the programs. The groups may insert events, and use the inbox and the idempotency keys.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop') THEN
        CREATE ROLE shop LOGIN PASSWORD 'change-me';
    END IF;
END $$;
GRANT outbox_relay_writer, outbox_relay_inbox, outbox_relay_idempotency TO shop;
GRANT SELECT, UPDATE ON account, customer_order TO shop;
GRANT SELECT, INSERT, UPDATE ON customer_total TO shop;
