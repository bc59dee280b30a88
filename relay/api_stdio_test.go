// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestDescriptorsHaveToBeAskedFor(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		header http.Header
		body   string
		field  string
	}{
		{http.Header{"Connection": {"Upgrade"}, "Upgrade": {"boxd-stdio"}}, "", ""},
		{http.Header{"Connection": {"keep-alive, upgrade"}, "Upgrade": {"BOXD-stdio"}}, "", ""},
		{http.Header{"Connection": {"close", "Upgrade"}, "Upgrade": {"boxd-stdio"}}, "", ""},
		{http.Header{}, "", "Upgrade"},
		{http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, "", "Upgrade"},
		{http.Header{"Connection": {"Upgrade"}, "Upgrade": {"boxd-stdio", "websocket"}}, "", "Upgrade"},
		{http.Header{"Upgrade": {"boxd-stdio"}}, "", "Connection"},
		{http.Header{"Connection": {"Upgrades"}, "Upgrade": {"boxd-stdio"}}, "", "Connection"},
		{http.Header{"Connection": {"Upgrade"}, "Upgrade": {"boxd-stdio"}}, "x", "body"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", strings.NewReader(tc.body))
		r.Header = tc.header
		f, ok := errors.AsType[*fault.Error](wantsUpgrade(r, api.StdioProtocol))
		if ok != (tc.field != "") || ok && f.Field != tc.field {
			t.Errorf("%v: %v, want %q", tc.header, f, tc.field)
		}
	}
}

// A client that does not receive its descriptors is waited for only for a limited time.
func TestDescriptorsAreNotSentForEver(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		t.Fatal("the connection is not a Unix socket")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	files := []*os.File{null, null, null}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for err = nil; err == nil && ctx.Err() == nil; { // until the socket is full
		err = sendStdio(socket, files, time.Now().Add(10*time.Millisecond))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("err = %v, want err is os.ErrDeadlineExceeded", err)
	}
	client.Close()
	if err := sendStdio(socket, files, time.Now().Add(time.Minute)); err == nil || err.Error() != "the caller has gone" {
		t.Errorf(`err = %v, want an error and err == "the caller has gone"`, err)
	}
}
