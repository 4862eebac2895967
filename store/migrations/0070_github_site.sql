-- Which GitHub the numeric ids of people, Repos and installations are of: its address.
CREATE TABLE github_site (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    web TEXT   NOT NULL
);
