/** The payload of the event. */
record OrderPaid(long order_id, String customer, long cents) {}
