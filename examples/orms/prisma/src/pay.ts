// Pays an order with Prisma. The event is a row of a model.
import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "./generated/client.js";

const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL! }) });

function pay(orderId: bigint) {
  // Use `tx` for each statement, not `prisma`.
  return prisma.$transaction(async (tx) => {
    // Lock the order first, so that the writers of this key take turns and its events are in commit order.
    const order = await tx.order.update({ where: { id: orderId, status: "placed" }, data: { status: "paid" } });
    const event = await tx.outboxEvent.create({
      data: {
        aggregateType: "order",
        aggregateId: String(order.id),
        eventType: "OrderPaid",
        payload: { order_id: Number(order.id), customer: order.customer, cents: Number(order.cents) },
      },
      // Without `select`, Prisma reads the whole row, which needs a privilege that writers do not have.
      select: { id: true, eventId: true },
    });
    await tx.account.update({ where: { customer: order.customer }, data: { cents: { decrement: order.cents } } });
    return event;
  });
}

try {
  const event = await pay(BigInt(process.argv[2]!));
  console.log("committed event", String(event.id), event.eventId);
} finally {
  await prisma.$disconnect();
}
