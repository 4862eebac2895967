-- What the store itself keeps.

-- One row: a new epoch is written by every process that had the database to itself. A Hub whose lock dropped and that
-- finds another epoch than the one it started with must not write any more.
CREATE TABLE store_state (
	one   BIGINT PRIMARY KEY CHECK (one = 1),
	epoch TEXT NOT NULL
);
INSERT INTO store_state (one, epoch) VALUES (1, '');

-- Wakeups for other Hubs. Each open database (hub) and each of its writers (slot) has rows of its own, so that waking
-- never makes two transactions conflict. A revision is random: readers compare it for equality, never for order.
CREATE TABLE topics (
	hub      TEXT NOT NULL,
	slot     BIGINT NOT NULL,
	topic    TEXT NOT NULL,
	revision BIGINT NOT NULL,
	woken_at BIGINT NOT NULL,
	PRIMARY KEY (hub, slot, topic)
);
