// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// startServer starts a NATS server with JetStream, and connects to it.
func startServer(t *testing.T) jetstream.JetStream {
	t.Helper()
	_, js := newServer(t)
	return js
}

// newServer is like startServer, and returns the server too.
func newServer(t testing.TB) (*server.Server, jetstream.JetStream) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return s, js
}

// A single server keeps one replica by default; more than it can keep are refused, not silently reduced.
func TestABucketOfOneServer(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	if _, _, err := openBucket(t.Context(), js, claimsConfig(3), "a"); err == nil {
		t.Error("no error for three replicas on one server")
	}
	_, id, err := openBucket(t.Context(), js, claimsConfig(0), "b")
	if err != nil || id != "b" {
		t.Fatalf(`id = %q, err = %v, want no error and id == "b"`, id, err)
	}
	if _, id, err = openBucket(t.Context(), js, claimsConfig(0), "c"); err != nil || id != "b" {
		t.Errorf(`it is another: id = %q, err = %v, want no error and id == "b"`, id, err)
	}
	if info, err := js.Stream(t.Context(), "KV_"+claimBucket); err != nil || info.CachedInfo().Config.Replicas != 1 {
		t.Errorf("info = %+v, err = %v, want no error and info.CachedInfo().Config.Replicas == 1", info, err)
	}
}
