// Code that the programs share: the payment, and a helper for transactions.
import pg from "pg";

/** Pays an order in the caller's transaction. The caller commits or rolls back. Returns the event ID. */
export async function pay(client: pg.ClientBase, orderId: number): Promise<string> {
  // Lock the order first, so that the writers of this key take turns and its events are in commit order.
  const orders = await client.query<{ customer: string; cents: string }>(
    "UPDATE customer_order SET status = 'paid' WHERE id = $1 AND status = 'placed' RETURNING customer, cents",
    [orderId],
  );
  const order = orders.rows[0];
  if (!order) throw new Error(`order ${orderId} does not exist or is already paid`);

  // Then insert the event in the same transaction. Use JSON.stringify: pg would send an array as a PostgreSQL array.
  const payload = { order_id: orderId, customer: order.customer, cents: Number(order.cents) };
  const events = await client.query<{ event_id: string }>(
    "SELECT outbox_enqueue('order', $1, 'OrderPaid', $2) AS event_id",
    [String(orderId), JSON.stringify(payload)],
  );

  // If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
  await client.query("UPDATE account SET cents = cents - $1 WHERE customer = $2", [order.cents, order.customer]);
  return events.rows[0]!.event_id;
}

/** Opens a pool. Without a listener, a lost connection would end the process. */
export function connect(url: string | undefined): pg.Pool {
  const pool = new pg.Pool({ connectionString: url });
  pool.on("error", (lost) => console.error("connection lost:", lost.message));
  return pool;
}

/** Runs the work in a transaction. All statements need the same client: pool.query() may use another one each time. */
export async function transaction<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  let broken: Error | undefined;
  const lost = (error: Error) => {
    broken = error;
  };
  client.on("error", lost); // the pool listens only while the client is idle
  try {
    await client.query("BEGIN");
    const result = await work(client);
    await client.query("COMMIT");
    return result;
  } catch (error) {
    await client.query("ROLLBACK").catch(lost);
    throw error;
  } finally {
    client.off("error", lost);
    client.release(broken); // a client that could not roll back leaves the pool
  }
}
