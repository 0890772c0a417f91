// Adds up the payments of each customer. A record that arrives again changes nothing.
import { Consumer, type Message, stringDeserializers } from "@platformatic/kafka";
import { connect, transaction } from "./shop.js";

const subscriber = "totals-typescript"; // the consumer group, and the name in the inbox
const pool = connect(process.env.DATABASE_URL);

async function handle(message: Message<string, string, string, string>): Promise<void> {
  if (message.headers.get("event_type") !== "OrderPaid") return;
  const event: { customer: string; cents: number } = JSON.parse(message.value);
  const eventId = message.headers.get("event_id");
  const first = await transaction(pool, async (client) => {
    // The mark and the effect are in one transaction. If the event is already marked, its effect has been committed.
    const received = await client.query<{ first: boolean }>("SELECT inbox_receive($1, $2) AS first", [subscriber, eventId]);
    if (!received.rows[0]!.first) return false;
    await client.query(
      `INSERT INTO customer_total AS t VALUES ($1, $2)
       ON CONFLICT (customer) DO UPDATE SET cents = t.cents + excluded.cents`,
      [event.customer, event.cents],
    );
    return true;
  });
  console.log(first ? "added" : "duplicate", eventId);
}

const consumer = new Consumer({
  clientId: "shop",
  groupId: subscriber,
  bootstrapBrokers: process.env.KAFKA!.split(","),
  deserializers: stringDeserializers,
  autocommit: false, // offsets are committed after the effect
  sessionTimeout: 10_000, // after a crash, another consumer takes over after this time
  heartbeatInterval: 2_000,
});
const messages = await consumer.consume({
  topics: [process.env.TOPIC!],
  mode: "committed",
  fallbackMode: "earliest", // a new group reads the records that are already there
});
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => messages.close());

for await (const message of messages) {
  await handle(message); // an exception ends the program; after a restart, the record is read again
  await message.commit();
}
await consumer.close();
await pool.end();
