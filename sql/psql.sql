-- Sets the variables of the statements for the outbox public.outbox, with on_sent = "mark", the topic template
-- events.{aggregate_type} and a payload column of type json. Run psql in the root of the repository:
--
--   psql -f sql/psql.sql
--   app=> \i sql/check/server.sql
--   app=> \bind '{0, 1}' '{0, 0}' 0 '{}' 0 10000
--   app=> \i sql/relay/scan.sql
--
-- A statement with parameters needs psql 16 or later, for \bind.

-- The tables and functions. Each name is quoted, with its schema.
\set outbox '"public"."outbox"'
\set lane '"public"."outbox_lane"'
\set dead_letter '"public"."outbox_dead_letter"'
\set hold '"public"."outbox_hold"'
\set blocked_key '"public"."outbox_blocked_key"'
\set pause '"public"."outbox_pause"'
\set act '"public"."outbox_act"'
\set record_act '"public"."outbox_record_act"'
\set reaper '"public"."outbox_reaper"'
\set hold_version '"public"."outbox_hold_version"'
\set setting '"public"."outbox_setting"'
\set sequence '"public"."outbox_id_seq"'
\set idempotency_key '"public"."idempotency_key"'

-- The columns of the outbox, which `[outbox.columns]` renames: in statements that change rows, and as a text.
\set id id
\set id_column id
\set event_id_column event_id
\set aggregate_type_column aggregate_type
\set aggregate_id_column aggregate_id
\set event_type_column event_type
\set payload_column payload
\set headers_column headers
\set created_at_column created_at
\set sent_at_column sent_at
\set topic_column topic
-- The rows of the outbox with the standard names of the columns, and those with all of their columns. With renamed columns, these are
-- subqueries.
\set rows '"public"."outbox"'
\set rows_with_topic '"public"."outbox"'
\set named_rows '"public"."outbox"'
\set whole_rows '"public"."outbox"'
\set whole_event 'o.id, o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at'

-- The topic of the row o: the column topic if the outbox has one, else the template.
\set has_topic false
\set has_event_type false
\set is_one_topic false
\set topic '''events.'' || left(o.aggregate_type, 300)'
\set topic_key o.aggregate_type
\set example_topic_key w.aggregate_type
\set same_type ' AND b.aggregate_type = o.aggregate_type'
\set large_event_type ''

-- The payload.
\set payload_bytes 'convert_to(payload::text, ''UTF8'')'
\set deletes false

-- What a statement sets itself: the numbers of its parameters, and what it makes of the columns.
\set excepted $7
\set floor $8
\set stringify $12
\set dropped $13
\set added $14
\set bad_header $15
\set is_read ''
\set skips ''
\set row_lane l.lane
\set is_pending true
\set is_named false

-- The parts. psql expands the variables in them where they are used.
\set above_mark `cat sql/part/above_mark.sql`
\set are_open `cat sql/part/are_open.sql`
\set changed_headers `cat sql/part/changed_headers.sql`
\set event `cat sql/part/event.sql`
\set is_free `cat sql/part/is_free.sql`
\set key_not_blocked `cat sql/part/key_not_blocked.sql`
\set key_not_paused `cat sql/part/key_not_paused.sql`
\set measured `cat sql/part/measured.sql`
\set not_blocked `cat sql/part/not_blocked.sql`
\set not_held `cat sql/part/not_held.sql`
\set not_paused `cat sql/part/not_paused.sql`
\set pending `cat sql/part/pending.sql`
\set versions `cat sql/part/versions.sql`
\set versions_and_open `cat sql/part/versions_and_open.sql`
\set versions_if_open `cat sql/part/versions_if_open.sql`

-- The commands of operators, `status` and `doctor`: every event is selected.
\set at rejected_at
\set selected true
\set in_range true
\set is_dead_letter true
\set newest_first true
\set sent_only true
\set counts false
\set changes_headers false
\set payload_length 'CASE WHEN pg_column_compression(o.payload) IS NULL THEN pg_column_size(o.payload) ELSE octet_length(o.payload::text) END'
\set payload_of_bytes 'convert_from(payload, ''UTF8'')::json'
\set record_bytes_max 1000000
