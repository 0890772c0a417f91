-- Whether all transactions that the marks except are in progress in the snapshot of the statement. :excepted is the parameter
-- that has them. A snapshot does not list its own transaction, which is that of a flow that has recorded rows.
NOT EXISTS (
    SELECT FROM unnest(:excepted::bigint[]) AS x(xid)
    WHERE pg_visible_in_snapshot(x.xid::text::xid8, pg_current_snapshot())
      AND x.xid::text::xid8 IS DISTINCT FROM pg_current_xact_id_if_assigned())
