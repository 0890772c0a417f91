-- Lists timeouts at the start of a session, in milliseconds; 0 means none. The transactions of the relay override them.
SELECT name, reset_val::bigint
FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout',
               'idle_in_transaction_session_timeout')
ORDER BY name;
