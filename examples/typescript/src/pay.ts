// Pays an order. The change and its event are committed together, or neither is.
import { connect, pay, transaction } from "./shop.js";

const pool = connect(process.env.DATABASE_URL);
try {
  const eventId = await transaction(pool, (client) => pay(client, Number(process.argv[2])));
  console.log("committed event", eventId);
} finally {
  await pool.end();
}
