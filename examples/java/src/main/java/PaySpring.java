import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.UUID;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Pays an order with Spring's JdbcClient. With @Transactional on the method that calls pay, the result is the same. */
class PaySpring {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final JdbcClient jdbc;

    PaySpring(JdbcClient jdbc) {
        this.jdbc = jdbc;
    }

    UUID pay(long orderId) {
        // Lock the order first, so that the writers of this key take turns and its events are in commit order.
        var event = jdbc.sql("""
                        UPDATE customer_order SET status = 'paid' WHERE id = ? AND status = 'placed'
                        RETURNING customer, cents""")
                .param(orderId)
                .query((order, row) -> new OrderPaid(orderId, order.getString("customer"), order.getLong("cents")))
                .optional()
                .orElseThrow(() -> new IllegalStateException("order " + orderId + " does not exist or is already paid"));

        // Then insert the event in the same transaction.
        var eventId = jdbc.sql("SELECT outbox_enqueue('order', ?, 'OrderPaid', ?::json)")
                .params(Long.toString(orderId), json(event))
                .query(UUID.class)
                .single();

        // If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
        jdbc.sql("UPDATE account SET cents = cents - ? WHERE customer = ?")
                .params(event.cents(), event.customer())
                .update();
        return eventId;
    }

    private static String json(OrderPaid event) {
        try {
            return JSON.writeValueAsString(event);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException(error); // unchecked, so that Spring rolls back
        }
    }

    public static void main(String[] arguments) {
        // With Spring Boot, inject these three.
        var dataSource = new DriverManagerDataSource(System.getenv("JDBC_URL"));
        var transaction = new TransactionTemplate(new JdbcTransactionManager(dataSource));
        var orders = new PaySpring(JdbcClient.create(dataSource));

        var eventId = transaction.execute(status -> orders.pay(Long.parseLong(arguments[0])));
        System.out.println("committed event " + eventId);
    }
}
