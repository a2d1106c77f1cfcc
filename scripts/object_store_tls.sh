#!/usr/bin/env bash
# object_store_tls.sh FOLDER: make a certificate authority (ca.pem) and a certificate of Google's API with its key (server.pem).
# Only programs that are told to trust ca.pem accept it.
set -euo pipefail
folder=$1
mkdir -p "$folder"
cd "$folder"
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=detloom tests" -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj "/CN=storage.googleapis.com" -keyout server.key -out server.csr 2>/dev/null
printf 'subjectAltName=DNS:storage.googleapis.com,DNS:www.googleapis.com\n' >names
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 -extfile names -out server.crt 2>/dev/null
cat server.crt server.key >server.new
rm ca.key names server.csr server.crt server.key
mv server.new server.pem
