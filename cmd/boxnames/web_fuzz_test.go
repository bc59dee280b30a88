// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation/egress"
)

// For any request of a box, the host that is checked against the rules is the host of the forwarded request.
func FuzzHost(f *testing.F) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: www.allowed.example\r\n\r\n", "GET http://other.example/ HTTP/1.1\r\nHost: www.allowed.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: www.allowed.example:80\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: www.allowed.example\x00.evil.example\r\n\r\n", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "GET / HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil {
			return
		}
		host, ok := hostOf(r, portWeb)
		if !ok {
			return
		}
		name, err := egress.ParseName("host", host)
		if err != nil {
			return // no rule can allow it
		}
		var sent bytes.Buffer
		if r.Write(&sent) != nil {
			return
		}
		again, err := http.ReadRequest(bufio.NewReader(&sent))
		if err != nil {
			return // the server refuses it
		}
		if to, _ := hostOf(again, portWeb); !strings.EqualFold(strings.TrimSuffix(to, "."), string(name)) {
			t.Errorf("%q is allowed for %s and sent to %q", head, name, to)
		}
	})
}
