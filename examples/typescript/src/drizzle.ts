// Pays an order with Drizzle. The change and its event are committed together, or neither is.
import { and, eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { bigint, pgTable, text } from "drizzle-orm/pg-core";

const account = pgTable("account", {
  customer: text().primaryKey(),
  cents: bigint({ mode: "number" }).notNull(),
});
const customerOrder = pgTable("customer_order", {
  id: bigint({ mode: "number" }).primaryKey(),
  customer: text().notNull(),
  cents: bigint({ mode: "number" }).notNull(),
  status: text().notNull(),
});

const db = drizzle(process.env.DATABASE_URL!);
// Without listeners, a lost connection would end the process.
db.$client.on("error", (lost) => console.error("connection lost:", lost.message));
db.$client.on("connect", (client) => client.on("error", (lost) => console.error("connection lost:", lost.message)));

async function pay(orderId: number): Promise<string> {
  // Commits at the end of the function, and rolls back if it throws. Use `tx` for each statement, not `db`.
  return db.transaction(async (tx) => {
    // Lock the order first, so that the writers of this key take turns and its events are in commit order.
    const [order] = await tx
      .update(customerOrder)
      .set({ status: "paid" })
      .where(and(eq(customerOrder.id, orderId), eq(customerOrder.status, "placed")))
      .returning();
    if (!order) throw new Error(`order ${orderId} does not exist or is already paid`);

    // Then insert the event in the same transaction.
    const payload = JSON.stringify({ order_id: order.id, customer: order.customer, cents: order.cents });
    const events = await tx.execute<{ event_id: string }>(
      sql`SELECT outbox_enqueue('order', ${String(order.id)}, 'OrderPaid', ${payload}) AS event_id`,
    );

    // If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
    await tx
      .update(account)
      .set({ cents: sql`${account.cents} - ${order.cents}` })
      .where(eq(account.customer, order.customer));
    return events.rows[0]!.event_id;
  });
}

try {
  console.log("committed event", await pay(Number(process.argv[2])));
} finally {
  await db.$client.end();
}
