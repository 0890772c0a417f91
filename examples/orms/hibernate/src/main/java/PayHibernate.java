import jakarta.persistence.Column;
import jakarta.persistence.Entity;
import jakarta.persistence.EntityManager;
import jakarta.persistence.GeneratedValue;
import jakarta.persistence.GenerationType;
import jakarta.persistence.Id;
import jakarta.persistence.LockModeType;
import jakarta.persistence.Table;
import java.util.Map;
import java.util.UUID;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.hibernate.annotations.Immutable;
import org.hibernate.annotations.JdbcTypeCode;
import org.hibernate.jpa.HibernatePersistenceConfiguration;
import org.hibernate.type.SqlTypes;

/** Pays an order with Hibernate. The event is an entity. */
public class PayHibernate {
    private static final Logger LOG = Logger.getLogger("org.hibernate");

    /** The columns that an application may set, and the generated id. Do not map created_at and sent_at. */
    @Entity
    @Immutable // otherwise, Hibernate can take the JSON for changed, and send an UPDATE
    @Table(name = "outbox")
    static class OutboxEvent {
        @Id
        @GeneratedValue(strategy = GenerationType.IDENTITY)
        Long id;

        @Column(name = "event_id")
        UUID eventId = UUID.randomUUID();

        @Column(name = "aggregate_type")
        String aggregateType;

        @Column(name = "aggregate_id")
        String aggregateId;

        @Column(name = "event_type")
        String eventType;

        @JdbcTypeCode(SqlTypes.JSON)
        Map<String, Object> payload;

        @JdbcTypeCode(SqlTypes.JSON)
        Map<String, Object> headers;
    }

    @Entity(name = "Account")
    @Table(name = "account")
    static class Account {
        @Id
        String customer;

        long cents;
    }

    @Entity
    @Table(name = "customer_order")
    static class Order {
        @Id
        long id;

        String customer;
        long cents;
        String status;
    }

    static OutboxEvent pay(EntityManager entities, long orderId) {
        // A flush sends inserts before updates, so lock the order first. refresh also reads it again: the entity manager may have read it
        // before another payment committed.
        Order order = entities.find(Order.class, orderId);
        if (order != null) {
            entities.refresh(order, LockModeType.PESSIMISTIC_WRITE);
        }
        if (order == null || !order.status.equals("placed")) {
            throw new IllegalStateException("order " + orderId + " does not exist or is already paid");
        }
        order.status = "paid";
        OutboxEvent event = new OutboxEvent();
        event.aggregateType = "order";
        event.aggregateId = Long.toString(order.id);
        event.eventType = "OrderPaid";
        event.payload = Map.of("order_id", order.id, "customer", order.customer, "cents", order.cents);
        entities.persist(event);
        entities.createQuery("UPDATE Account SET cents = cents - :cents WHERE customer = :customer")
                .setParameter("cents", order.cents)
                .setParameter("customer", order.customer)
                .executeUpdate();
        return event;
    }

    public static void main(String[] arguments) {
        LOG.setLevel(Level.OFF);
        var configuration = new HibernatePersistenceConfiguration("shop")
                .managedClasses(OutboxEvent.class, Account.class, Order.class)
                .jdbcUrl(System.getenv("JDBC_URL"))
                // Otherwise, the driver adds RETURNING * to the INSERT, which needs the privilege to read the whole event.
                .property("hibernate.jdbc.use_get_generated_keys", "false");
        try (var factory = configuration.createEntityManagerFactory()) {
            OutboxEvent event = factory.callInTransaction(entities -> pay(entities, Long.parseLong(arguments[0])));
            System.out.println("committed event " + event.id + " " + event.eventId);
        }
    }
}
