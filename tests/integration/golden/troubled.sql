-- Events that wait for each reason, and dead letters of each kind.
INSERT INTO app.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at)
VALUES
    ('00000000-0000-0000-0000-000000000011', 'order', 'k1', 'Placed', '{"n":  1}', NULL, '2020-02-02 02:03:01Z'),
    ('00000000-0000-0000-0000-000000000012', 'order', 'paused', 'Placed', '{"n":  2}', NULL, '2020-02-02 02:03:02Z'),
    ('00000000-0000-0000-0000-000000000013', 'invoice', 'k1', 'Placed', '{"n":  3}', NULL, '2020-02-02 02:03:03Z'),
    ('00000000-0000-0000-0000-000000000014', 'held', 'k1', 'Placed', '{"n":  4}', NULL, '2020-02-02 02:03:04Z'),
    ('00000000-0000-0000-0000-000000000015', 'order', 'blocked-1', 'Placed', '{"n":  5}', NULL, '2020-02-02 02:03:05Z'),
    ('00000000-0000-0000-0000-000000000016', 'order', 'blocked-2', 'Placed', '{"n":  6}', NULL, '2020-02-02 02:03:06Z'),
    ('00000000-0000-0000-0000-000000000017', 'order', 'blocked-3', 'Placed', '{"n":  7}', '{"h": 1}', '2020-02-02 02:03:07Z');

INSERT INTO app.outbox_blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error, blocked_at)
SELECT aggregate_type, aggregate_id, id, event_id, 'golden.order',
       CASE WHEN aggregate_id = 'blocked-3' THEN 'invalid-headers' ELSE 'record-too-large' END,
       'the error of ' || aggregate_id, created_at + interval '1 minute'
FROM app.outbox WHERE aggregate_id LIKE 'blocked-%';
-- Its event is gone.
INSERT INTO app.outbox_blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error, blocked_at)
VALUES ('order', 'blocked-4', 999, '00000000-0000-0000-0000-000000000999', 'golden.order', 'record-too-large',
        'the error of blocked-4', '2020-02-02 02:04:09Z');

INSERT INTO app.outbox_hold (topic, aggregate_id, reason, error, held_at, probes, probe_at)
VALUES ('golden.held', 'k1', 'unknown-topic', 'no such topic', '2020-02-02 02:05:00Z', 3, '2020-02-02 02:06:00Z');

INSERT INTO app.outbox_pause (topic, aggregate_type, aggregate_id, reason, role, paused_at)
VALUES ('golden.invoice', NULL, NULL, 'consumers migrate', 'alice', '2020-02-02 02:07:00Z'),
       (NULL, 'order', 'paused', NULL, 'bob', '2020-02-02 02:08:00Z');

INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                                    created_at, topic, reason, error, rejected_at, requeued_at)
SELECT n * 100, ('00000000-0000-0000-0000-0000000001' || lpad(n::text, 2, '0'))::uuid, t, 'key-' || n % 3, 'Placed',
       CASE n WHEN 1 THEN NULL WHEN 2 THEN '\xff00'::bytea ELSE convert_to('{"n":  ' || n || '}', 'UTF8') END,
       CASE n WHEN 6 THEN '{"n": 1, "o": null}'::jsonb WHEN 3 THEN '{"trace": "a", "b": "c"}' END,
       '2020-02-02 02:02:02Z', 'golden.' || t, CASE WHEN n = 6 THEN 'invalid-headers' ELSE 'record-too-large' END,
       'the error of ' || n, '2020-02-02 02:09:00Z'::timestamptz + n * interval '1 second',
       CASE WHEN n % 2 = 0 AND n < 6 THEN '2020-02-02 02:10:00Z'::timestamptz END
FROM generate_series(1, 9) AS n, LATERAL (SELECT CASE WHEN n <= 3 THEN 'order' ELSE 'invoice' END) AS of(t);

-- Without the pauses above.
TRUNCATE app.outbox_act;
