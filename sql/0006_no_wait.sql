-- Relays look for new events with a statement of their own, and no longer call the procedure of migration 3. An older relay that
-- still runs scans instead.
DROP PROCEDURE IF EXISTS {wait};
