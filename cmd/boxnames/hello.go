// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
)

// A TLS record is a type, a version, a length, and that many bytes.
const (
	recordHead      = 5
	maxRecord       = 1<<14 + 2048
	typeHandshake   = 22
	typeClientHello = 1
	helloHead       = 4
	maxHello        = 32 << 10 // bytes in all its records
	encryptedHello  = 0xfe0d   // the extension encrypted_client_hello
)

var (
	errNoHello   = errors.New("not a TLS ClientHello")
	errEncrypted = errors.New("the name is encrypted (ECH)")
)

// readHello reads the records of a ClientHello and returns them with the server name in it. No
// record may go on after it.
func readHello(r *bufio.Reader) (records []byte, server string, err error) {
	var message []byte
	for need := helloHead; len(message) < need; {
		head, err := r.Peek(recordHead)
		if err != nil {
			return records, "", err
		}
		n := int(binary.BigEndian.Uint16(head[3:]))
		if head[0] != typeHandshake || head[1] != 3 || n == 0 || n > maxRecord || len(records)+recordHead+n > maxHello {
			return records, "", errNoHello
		}
		record := make([]byte, recordHead+n)
		if n, err := io.ReadFull(r, record); err != nil {
			return append(records, record[:n]...), "", err
		}
		records, message = append(records, record...), append(message, record[recordHead:]...)
		if message[0] != typeClientHello {
			return records, "", errNoHello
		}
		if len(message) >= helloHead {
			need = helloHead + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
			if need > maxHello || len(message) > need {
				return records, "", errNoHello
			}
		}
	}
	server, err = serverName(records)
	return records, server, err
}

// errSeen ends a handshake as soon as its ClientHello is parsed.
var errSeen = errors.New("the hello was seen")

// serverName has crypto/tls parse a ClientHello.
func serverName(records []byte) (name string, err error) {
	parsed := false
	// Nothing is ever sent in answer to it.
	server := tls.Server(&parsedConn{in: bytes.NewReader(records)}, &tls.Config{ //nolint:gosec // see above
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, parsed = hello.ServerName, true
			if slices.Contains(hello.Extensions, encryptedHello) {
				name, err = "", errEncrypted
			}
			return nil, errSeen
		},
	})
	_ = server.Handshake() //nolint:noctx // it has all that it reads
	if !parsed {
		return "", errNoHello
	}
	return name, err
}

// parsedConn is a connection that returns bytes read earlier, and drops what is written to it.
type parsedConn struct {
	net.Conn
	in io.Reader
}

func (h *parsedConn) Read(b []byte) (int, error)  { return h.in.Read(b) }
func (h *parsedConn) Write(b []byte) (int, error) { return len(b), nil }
