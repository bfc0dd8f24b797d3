#!/bin/sh
# Runs once, when the database is new: makes the application's role, which is no superuser, and its database.
set -eu
psql --username "$POSTGRES_USER" --dbname postgres --set ON_ERROR_STOP=1 --set password="$AUDITOR_PASSWORD" <<'SQL'
create role auditor login password :'password';
create database auditor owner auditor;
SQL
