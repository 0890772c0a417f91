-- Three events, which a relay sends.
INSERT INTO app.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at)
VALUES
    ('00000000-0000-0000-0000-000000000001', 'order', 'k1', 'Placed', '{"n":  1}', '{"trace": "a"}', '2020-02-02 02:02:01Z'),
    ('00000000-0000-0000-0000-000000000002', 'order', 'k2', 'Placed', '{"n":  2}', NULL, '2020-02-02 02:02:02Z'),
    ('00000000-0000-0000-0000-000000000003', 'order', 'k1', 'Changed', NULL, NULL, '2020-02-02 02:02:03Z');
