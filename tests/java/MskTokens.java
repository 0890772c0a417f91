import java.io.FileInputStream;
import java.io.IOException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/**
 * Verifies tokens as Amazon MSK documents them: URLs of kafka-cluster:Connect in Base64, signed in their query (SigV4). It takes the
 * region from the system property test.msk.region. The file test.msk.keys has ID.secret and ID.session for each known access key, and
 * is read again for each token.
 */
public class MskTokens implements AuthenticateCallbackHandler {
    private static final Duration CLOCK_SKEW_MAX = Duration.ofMinutes(5);
    private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'");

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

    @Override
    public void close() {}

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (!(callback instanceof OAuthBearerValidatorCallback validation)) {
                throw new UnsupportedCallbackException(callback);
            }
            try {
                validation.token(verified(validation.tokenValue()));
            } catch (Exception error) {
                System.err.println("MskTokens: refused: " + error.getMessage());
                validation.error("invalid_token", null, null);
            }
        }
    }

    private static OAuthBearerToken verified(String token) throws GeneralSecurityException, IOException {
        String region = System.getProperty("test.msk.region");
        String host = "kafka." + region + ".amazonaws.com";
        String url = new String(Base64.getUrlDecoder().decode(token), StandardCharsets.UTF_8);
        String start = "https://" + host + "/?";
        require(url.startsWith(start), "the region is not " + region);
        TreeMap<String, String> encoded = new TreeMap<>();
        for (String pair : url.substring(start.length()).split("&")) {
            String[] parts = pair.split("=", 2);
            require(parts.length == 2 && encoded.put(parts[0], parts[1]) == null, "the query is malformed");
        }
        require("kafka-cluster%3AConnect".equals(encoded.get("Action")), "the action is wrong");
        require("AWS4-HMAC-SHA256".equals(decoded(encoded, "X-Amz-Algorithm")), "the algorithm is wrong");
        require("host".equals(decoded(encoded, "X-Amz-SignedHeaders")), "other headers are signed");
        require(encoded.containsKey("User-Agent"), "there is no user agent");

        String time = decoded(encoded, "X-Amz-Date");
        Instant signed = LocalDateTime.parse(time, TIME).toInstant(ZoneOffset.UTC);
        Duration valid = Duration.ofSeconds(Long.parseLong(decoded(encoded, "X-Amz-Expires")));
        require(valid.compareTo(Duration.ofMinutes(15)) <= 0, "the token is valid for too long");
        Instant now = Instant.now();
        require(now.isBefore(signed.plus(valid)), "the token has expired");
        require(now.isAfter(signed.minus(CLOCK_SKEW_MAX)), "the token is of the future");

        String[] credential = decoded(encoded, "X-Amz-Credential").split("/", 2);
        String scope = time.substring(0, 8) + "/" + region + "/kafka-cluster/aws4_request";
        require(credential.length == 2 && scope.equals(credential[1]), "the scope is wrong");
        Properties keys = new Properties();
        try (FileInputStream file = new FileInputStream(System.getProperty("test.msk.keys"))) {
            keys.load(file);
        }
        String secret = keys.getProperty(credential[0] + ".secret");
        require(secret != null, "the access key is not known");
        require(keys.getProperty(credential[0] + ".session").equals(decoded(encoded, "X-Amz-Security-Token")), "the session is wrong");

        String signature = encoded.remove("X-Amz-Signature");
        encoded.remove("User-Agent");
        String query = encoded.entrySet().stream().map(Object::toString).collect(Collectors.joining("&"));
        String request = "GET\n/\n" + query + "\nhost:" + host + "\n\nhost\n" + sha256("");
        String text = "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + sha256(request);
        byte[] key = ("AWS4" + secret).getBytes(StandardCharsets.UTF_8);
        for (String part : scope.split("/")) {
            key = hmac(key, part);
        }
        require(HexFormat.of().formatHex(hmac(key, text)).equals(signature), "the signature is wrong");
        return new Verified(token, credential[0], signed.toEpochMilli(), signed.plus(valid).toEpochMilli());
    }

    private static void require(boolean condition, String otherwise) {
        if (!condition) {
            throw new IllegalArgumentException(otherwise);
        }
    }

    private static String decoded(Map<String, String> encoded, String name) {
        String value = encoded.get(name);
        require(value != null, name + " is missing");
        return URLDecoder.decode(value, StandardCharsets.UTF_8);
    }

    private static byte[] hmac(byte[] key, String text) throws GeneralSecurityException {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String sha256(String text) throws GeneralSecurityException {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
        return HexFormat.of().formatHex(digest);
    }

    private record Verified(String value, String principalName, Long startTimeMs, long lifetimeMs) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }
    }
}
