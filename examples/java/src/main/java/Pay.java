import com.fasterxml.jackson.databind.ObjectMapper;
import java.sql.Connection;
import java.sql.DriverManager;
import java.util.UUID;

/** Pays an order. The change and its event are committed together, or neither is. */
class Pay {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Pays an order in the caller's transaction. The caller commits or rolls back. Returns the event ID. */
    static UUID pay(Connection connection, long orderId) throws Exception {
        // Lock the order first, so that the writers of this key take turns and its events are in commit order.
        OrderPaid event;
        try (var update = connection.prepareStatement("""
                UPDATE customer_order SET status = 'paid' WHERE id = ? AND status = 'placed' RETURNING customer, cents""")) {
            update.setLong(1, orderId);
            var order = update.executeQuery();
            if (!order.next()) {
                throw new IllegalStateException("order " + orderId + " does not exist or is already paid");
            }
            event = new OrderPaid(orderId, order.getString("customer"), order.getLong("cents"));
        }

        // Then insert the event in the same transaction. The cast tells PostgreSQL that the string is JSON.
        UUID eventId;
        try (var enqueue = connection.prepareStatement("SELECT outbox_enqueue('order', ?, 'OrderPaid', ?::json)")) {
            enqueue.setString(1, Long.toString(orderId));
            enqueue.setString(2, JSON.writeValueAsString(event));
            var id = enqueue.executeQuery();
            id.next();
            eventId = id.getObject(1, UUID.class);
        }

        // If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
        try (var debit = connection.prepareStatement("UPDATE account SET cents = cents - ? WHERE customer = ?")) {
            debit.setLong(1, event.cents());
            debit.setString(2, event.customer());
            debit.executeUpdate();
        }
        return eventId;
    }

    public static void main(String[] arguments) throws Exception {
        try (var connection = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            connection.setAutoCommit(false); // otherwise each statement is a transaction
            try {
                var eventId = pay(connection, Long.parseLong(arguments[0]));
                connection.commit();
                System.out.println("committed event " + eventId);
            } catch (Exception error) {
                connection.rollback();
                throw error;
            }
        }
    }
}
