import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Adds up the payments of each customer. A record that arrives again changes nothing. */
class Consume {
    private static final String SUBSCRIBER = "totals-java"; // the consumer group, and the name in the inbox
    private static final ObjectMapper JSON = new ObjectMapper();

    static void process(Connection connection, ConsumerRecord<String, String> record) throws Exception {
        if (!header(record, "event_type").equals("OrderPaid")) {
            return;
        }
        var event = JSON.readValue(record.value(), OrderPaid.class);
        try (var receive = connection.prepareStatement("SELECT inbox_receive(?, ?)");
                var add = connection.prepareStatement("""
                        INSERT INTO customer_total AS t VALUES (?, ?)
                        ON CONFLICT (customer) DO UPDATE SET cents = t.cents + excluded.cents""")) {
            // The mark and the effect are in one transaction. If the event is already marked, its effect has been committed.
            receive.setString(1, SUBSCRIBER);
            receive.setString(2, header(record, "event_id"));
            var received = receive.executeQuery();
            received.next();
            var first = received.getBoolean(1);
            if (first) {
                add.setString(1, event.customer());
                add.setLong(2, event.cents());
                add.executeUpdate();
            }
            connection.commit();
            System.out.println((first ? "added " : "duplicate ") + header(record, "event_id"));
        }
    }

    private static String header(ConsumerRecord<String, String> record, String name) {
        return new String(record.headers().lastHeader(name).value(), StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", System.getenv("KAFKA"),
                "group.id", SUBSCRIBER,
                "auto.offset.reset", "earliest", // a new group reads the records that are already there
                "enable.auto.commit", false, // offsets are committed after the effect
                "session.timeout.ms", 10_000); // after a crash, another consumer takes over after this time
        var main = Thread.currentThread();
        try (var connection = DriverManager.getConnection(System.getenv("JDBC_URL"));
                var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                consumer.wakeup();
                join(main);
            }));
            connection.setAutoCommit(false); // otherwise each statement is a transaction
            consumer.subscribe(List.of(System.getenv("TOPIC")));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    process(connection, record); // an exception ends the program; after a restart, the record is read again
                }
                consumer.commitSync();
            }
        } catch (WakeupException stopping) {
            System.out.println("stopped");
        }
    }

    private static void join(Thread thread) {
        try {
            thread.join();
        } catch (InterruptedException ignored) {
            thread.interrupt();
        }
    }
}
