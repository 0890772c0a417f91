//! Every way to log in to PostgreSQL works. For every mistake, the error message states the cause and the fix.

use crate::postgres::BY_BOTH;
use crate::postgres::BY_CERTIFICATE;
use crate::postgres::BY_PASSWORD;
use crate::postgres::BY_TRUST;
use crate::postgres::Secured;
use crate::support::certificates::authority;
use crate::support::database::run;
use crate::support::tls_proxy::TlsProxy;

#[tokio::test]
async fn every_way_to_log_in_to_postgres_works() {
    let secured = Secured::start("works").await;
    let (files, signer) = (&secured.files, &secured.authority);
    for (role, parameters) in [
        (BY_PASSWORD, ""),
        (BY_PASSWORD, "&channel_binding=require"),
        (BY_PASSWORD, "&channel_binding=disable&ssl_max_protocol_version=TLSv1.2&sslsni=0"),
        (BY_PASSWORD, "&ssl_min_protocol_version=TLSv1.3&target_session_attrs=read-write"),
        (BY_CERTIFICATE, ""),
        (BY_BOTH, "&channel_binding=require"),
    ] {
        secured.assert_works(&format!("{role} {parameters}"), secured.relay(role, parameters)).await;
    }
    let encrypted =
        files.put("encrypted.key", signer.client(BY_CERTIFICATE).encrypted_key_pem("key password"));
    let relay =
        secured.relay(BY_CERTIFICATE, "&sslpassword=key%20password").set("postgres", "sslkey", encrypted);
    // The key belongs to another certificate.
    secured
        .assert_invalid("key of another certificate", relay, &["does not match the client certificate"])
        .await;
    let client = signer.client(BY_CERTIFICATE);
    files.put("by_certificate.pem", client.cert_pem());
    let encrypted = files.put("encrypted.key", client.encrypted_key_pem("key password"));
    let relay =
        secured.relay(BY_CERTIFICATE, "&sslpassword=key%20password").set("postgres", "sslkey", encrypted);
    secured.assert_works("encrypted key", relay).await;

    let list = files.put("crl.pem", signer.revocation_list(&[&client]));
    let relay = secured.relay(BY_PASSWORD, &format!("&sslcrl={list}"));
    secured.assert_works("list that revokes another certificate", relay).await;
    if secured.outbox.count("SELECT current_setting('server_version_num')::bigint").await >= 170_000 {
        let relay = secured.relay(BY_PASSWORD, "&sslnegotiation=direct&channel_binding=require");
        secured.assert_works("TLS without a request for it", relay).await;
    }
    secured.outbox.drop().await;
}

/// The proxy terminates TLS. Once it uses its own certificate for the server's name, and once the server's stolen
/// certificate.
#[tokio::test]
async fn channel_binding_detects_a_proxy_that_terminates_tls() {
    let secured = Secured::start("binding").await;
    let own = secured.authority.server(&["localhost"]);
    secured.show(&secured.authority, &own);
    secured.reload().await;
    let address = secured.server.address();
    let (transparent, stranger) = (
        TlsProxy::start(&address, &own).await,
        TlsProxy::start(&address, &secured.authority.server(&["localhost"])).await,
    );
    let by = |proxy: &TlsProxy, parameters: &str| {
        let place = format!("localhost:{}", proxy.port());
        let parameters = format!("hostaddr=127.0.0.1&sslmode=verify-full{parameters}");
        secured.relay_at(&place, BY_PASSWORD, &parameters)
    };
    secured.assert_works("the server's own certificate", by(&transparent, "&channel_binding=require")).await;
    assert!(transparent.has_seen("SCRAM-SHA-256-PLUS") && transparent.has_seen("p=tls-server-end-point"));
    secured.assert_works("no channel binding", by(&stranger, "&channel_binding=disable")).await;
    assert!(stranger.has_seen("SCRAM-SHA-256") && !stranger.has_seen("SCRAM-SHA-256-PLUS"));
    for parameters in ["", "&channel_binding=require"] {
        let said = ["SCRAM channel binding check failed", "terminates TLS between the relay and the server"];
        secured.assert_refused("proxy that terminates TLS", by(&stranger, parameters), &said).await;
    }
    assert!(stranger.has_seen("SCRAM-SHA-256-PLUS"));
    secured.outbox.drop().await;
}

#[tokio::test]
async fn each_mistake_with_postgres_reports_the_cause_and_the_fix() {
    let secured = Secured::start("mistakes").await;
    let (files, signer) = (&secured.files, &secured.authority);
    let other = authority("another authority");
    let other_ca = files.put("other.pem", other.cert_pem());
    let refused = async |what: &str, relay, said: &[&str]| secured.assert_refused(what, relay, said).await;

    let relay = secured.relay(BY_PASSWORD, &format!("&sslrootcert={other_ca}"));
    // The server sends the whole certificate chain.
    let said =
        ["self-signed certificate in certificate chain", "trust the authority that signed", "sslrootcert"];
    refused("wrong authority", relay, &said).await;

    let relay = secured.relay_at(&secured.server.address(), BY_PASSWORD, "sslmode=verify-full");
    refused(
        "wrong host name",
        relay,
        &["IP address mismatch", "connect with a name that is in the certificate"],
    )
    .await;

    let wrong = files.put("wrong", "a wrong password");
    let relay = secured.relay(BY_PASSWORD, "").set("postgres", "password_file", wrong);
    let said =
        ["password authentication failed", "its password or client certificate", "reloaded at each attempt"];
    refused("wrong password", relay, &said).await;

    let relay = secured.relay(BY_PASSWORD, "").unset("postgres", "password_file");
    refused("no password", relay, &["password missing", "set [postgres] password_file"]).await;

    let relay = secured.relay(BY_BOTH, "").unset("postgres", "sslcert").unset("postgres", "sslkey");
    let said = ["connection requires a valid client certificate", "sslcert and sslkey"];
    refused("missing client certificate", relay, &said).await;

    let stranger = other.client(BY_CERTIFICATE);
    let (cert, key) =
        (files.put("stranger.pem", stranger.cert_pem()), files.put("stranger.key", stranger.key_pem()));
    let stranger = |parameters: &str| {
        let relay = secured.relay(BY_CERTIFICATE, parameters);
        relay.set("postgres", "sslcert", cert.as_str()).set("postgres", "sslkey", key.as_str())
    };
    let said = ["unknown ca", "from an authority that the server trusts"];
    refused(
        "client certificate of an unknown authority",
        stranger("&ssl_max_protocol_version=TLSv1.2"),
        &said,
    )
    .await;
    // In TLS 1.3, the refusal arrives after the handshake and may be lost when the server closes the connection.
    refused("client certificate of an unknown authority, TLS 1.3", stranger(""), &["client certificate"])
        .await;

    let relay = secured.relay_at(&secured.server.address(), BY_PASSWORD, "sslmode=disable");
    refused("no TLS", relay, &["no encryption", "sslmode if the error contains \"no encryption\""]).await;

    let relay = secured.relay(BY_TRUST, "&channel_binding=require");
    refused("server requests no password", relay, &["server did not use channel binding", "scram-sha-256"])
        .await;

    let relay = secured
        .relay(BY_PASSWORD, &format!("&sslcrl={}", files.put("other.crl", other.revocation_list(&[]))));
    refused(
        "no revocation list of this authority",
        relay,
        &["unable to get certificate CRL", "add the revocation list"],
    )
    .await;

    let revoked = signer.server(&["localhost"]);
    let list = files.put("crl.pem", signer.revocation_list(&[&revoked]));
    secured.show(signer, &revoked);
    secured.reload().await;
    let relay = secured.relay(BY_PASSWORD, &format!("&sslcrl={list}"));
    refused("revoked certificate", relay, &["certificate revoked", "issue a new certificate"]).await;

    secured.show(signer, &signer.expired_server(&["localhost"]));
    secured.reload().await;
    let said = ["certificate has expired", "renew the server certificate"];
    refused("expired certificate", secured.relay(BY_PASSWORD, ""), &said).await;

    run(&secured.outbox.client, "ALTER SYSTEM SET ssl = off").await;
    secured.reload().await;
    let said = ["server does not support TLS", "set ssl = on in postgresql.conf"];
    refused("server without TLS", secured.relay(BY_PASSWORD, ""), &said).await;
    secured.outbox.drop().await;
}
