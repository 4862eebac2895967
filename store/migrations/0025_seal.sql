-- The keys that values are sealed under, by id; a key itself is in the config only. Every key column of a sealed value
-- references it, so that no value can be stored under a key that nobody ever registered. Times are Unix ms.
CREATE TABLE encryption_keys (
    key_id     TEXT   PRIMARY KEY CHECK (length(key_id) = 16),
    check_blob BYTEA  NOT NULL, -- a known text under the key
    created_at BIGINT NOT NULL,
    retired_at BIGINT           -- nothing is sealed under it any more, and nothing may be; NULL: in use
);

-- Which keys each running Hub has. A Hub writes its row again every few seconds.
CREATE TABLE encryption_hubs (
    hub     TEXT   PRIMARY KEY,
    name    TEXT   NOT NULL,
    key_ids TEXT   NOT NULL, -- in the order of its config, with commas between; the first one seals
    seen_at BIGINT NOT NULL
);
