// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"net"
	"testing"
)

// What is accepted as a ClientHello is exactly what was sent, up to its end, and parses the same
// once more.
func FuzzReadHello(f *testing.F) {
	here, there := net.Pipe()
	go func() {
		_ = tls.Client(there, &tls.Config{ServerName: "www.allowed.example"}).Handshake() //nolint:gosec // it ends with the pipe
		there.Close()
	}()
	buf := make([]byte, 16<<10)
	n, err := here.Read(buf)
	here.Close()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(buf[:n])
	// The same hello in two records.
	f.Add(append([]byte("\x16\x03\x01\x00\x01\x01\x16\x03\x01"+string([]byte{byte((n - 6) >> 8), byte(n - 6)})), buf[6:n]...))
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, server, err := readHello(bufio.NewReaderSize(bytes.NewReader(data), 64))
		if !bytes.HasPrefix(data, records) || len(records) > maxHello {
			t.Fatal("the records are not the bytes that were sent, or too long")
		}
		if err != nil {
			if server != "" {
				t.Fatal("a server name was returned together with an error")
			}
			return
		}
		again, name, err := readHello(bufio.NewReader(bytes.NewReader(records)))
		if err != nil || name != server || !bytes.Equal(again, records) {
			t.Fatalf("once more: name = %q, err = %v, want no error and name == %q and again equal to records",
				name, err, server)
		}
	})
}
