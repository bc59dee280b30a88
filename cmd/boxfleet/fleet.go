// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/relay/api"
)

// Subjects of NATS. No name of a caller or session is in them.
const (
	nodeSubject    = "fleet.n." // and the name of the node: its streams and requests
	gatewaySubject = "fleet.g"  // and the id of the gateway: the other ends of streams
)

// Buckets of JetStream.
const (
	nodeBucket  = "boxd_nodes"  // what each node announces; that it does so is its lease
	claimBucket = "boxd_claims" // where each session is
)

// Times of a lease.
const (
	renewEvery = 2 * time.Second
	// fencedAfter is how long a node serves a fleet that has not taken its announcement; shorter than lostAfter.
	fencedAfter = 10 * time.Second
	// lostAfter is how long a node may not be heard of before its sessions are lost.
	lostAfter = 15 * time.Second

	requestTimeout = 5 * time.Second // for an answer of NATS
)

// bucketID is the key of a bucket's metadata that tells it from another of the same name, after somebody has removed it.
const bucketID = "boxd-id"

// natsServers says where NATS is.
type natsServers struct {
	Addresses   []string
	Credentials string // file; "": none
	CA          string // file; "": the host's
	Name        string // of who connects, for the operator of NATS
}

// connectNATS connects to NATS, and goes on trying where that fails: errors are logged. Only what can never be right is an error
// here.
func connectNATS(s *natsServers, log *slog.Logger) (*nats.Conn, error) {
	if len(s.Addresses) == 0 {
		return nil, errors.New("fleet.servers = []: must be addresses of NATS servers")
	}
	errs := &connectionErrors{servers: s}
	options := []nats.Option{
		nats.Name(s.Name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 250*time.Millisecond),
		nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(requestTimeout),
		nats.CustomInboxPrefix("_INBOX_" + s.Name),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			errs.log(err, func(err error) { log.Warn("cannot connect to NATS; trying again", "error", err) })
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				errs.log(err, func(err error) { log.Warn("the connection to NATS is lost", "error", err) })
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			errs.forget()
			log.Info("connected to NATS", "server", c.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			errs.log(err, func(err error) { log.Warn("the connection to NATS has an error", "error", err) })
		}),
	}
	if s.Credentials != "" {
		options = append(options, nats.UserCredentials(s.Credentials))
	}
	if s.CA != "" {
		options = append(options, nats.RootCAs(s.CA))
	}
	nc, err := nats.Connect(strings.Join(s.Addresses, ","), options...)
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	return nc, nil
}

// connectionErrors logs what is wrong with the connection to NATS, when it is new and then each minute: a server that is away is
// tried twice a second.
type connectionErrors struct {
	servers *natsServers

	mu   sync.Mutex
	last string
	at   time.Time
}

const repeatEvery = time.Minute

func (t *connectionErrors) log(err error, write func(error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err.Error() == t.last && time.Since(t.at) < repeatEvery {
		return
	}
	t.last, t.at = err.Error(), time.Now()
	write(t.servers.explain(err))
}

func (t *connectionErrors) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = ""
}

// explain says which file an error of NATS is about.
func (s *natsServers) explain(err error) error {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		if s.Credentials == "" {
			return fmt.Errorf("%w: the servers want credentials, and none are configured", err)
		}
		return fmt.Errorf("%w: the servers do not accept the credentials in %s, which are wrong, revoked or have expired", err, s.Credentials)
	case unknown && s.CA == "":
		return fmt.Errorf("%w: the certificate of the server is not signed by a CA that this host trusts, and ca is not set", err)
	case unknown:
		return fmt.Errorf("%w: the certificate of the server is not signed by a CA in %s", err, s.CA)
	}
	return err
}

// sessionClaim says where a session is.
type sessionClaim struct {
	api.FleetClaim
	Sandbox      bool   `json:"sandbox,omitempty"`       // clients of E2B may use it
	ToGeneration uint64 `json:"to_generation,omitempty"` // of the claim of the node that it is being moved to
	Ran          bool   `json:"ran,omitempty"`           // it was stopped for a move alone: if that breaks off, its node starts it again
	Workspace    int64  `json:"workspace,omitempty"`     // of LangBot, in this placement generation; 0: it is a session
	Served       int64  `json:"served,omitempty"`        // the last placement generation in which it was live; 0: unknown, at most Workspace; below: none yet
	Keeps        bool   `json:"keeps,omitempty"`         // the Workspace has what no other node has, without a session too
	key          string
	revision     uint64
}

// neverServed is a claim's Served before its first placement generation is live.
const neverServed = -1

// served is the last placement generation of which its node may have something.
func (c *sessionClaim) served() int64 { return cmp.Or(c.Served, c.Workspace) }

// goesTo reports whether a session is on its way to a node, or has moved there, in a generation.
func (c *sessionClaim) goesTo(node string, generation uint64) bool {
	return c.State == api.FleetClaimMoving && c.To == node && c.ToGeneration == generation || c.State == api.FleetClaimLive && c.Node == node && c.Generation == generation
}

// starts reports whether a node was asked for a new session in a generation.
func (c *sessionClaim) starts(node string, generation uint64) bool {
	return c.State == api.FleetClaimStarting && c.Node == node && c.Generation == generation
}

// claimKey is the key of a session. Ids are not for keys of a bucket, whose letters are few.
func claimKey(owner, id string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + id))
	return base64.RawURLEncoding.EncodeToString(sum[:24])
}

// openBucket opens a bucket, and makes it where it is missing. id tells it from one of the same name that was removed.
func openBucket(ctx context.Context, js jetstream.JetStream, c *jetstream.KeyValueConfig, fresh string) (kv jetstream.KeyValue, id string, err error) {
	kv, err = js.KeyValue(ctx, c.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		c.Metadata = map[string]string{bucketID: fresh}
		if kv, err = createBucket(ctx, js, *c); errors.Is(err, jetstream.ErrBucketExists) {
			kv, err = js.KeyValue(ctx, c.Bucket)
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("bucket %s: %w", c.Bucket, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("bucket %s: %w", c.Bucket, err)
	}
	return kv, status.Metadata()[bucketID], nil
}

// How many copies a cluster of NATS has of a bucket for which nobody has said it, and how JetStream refuses more than one
// where there is no cluster.
const (
	copiesInCluster = 3
	errNoCluster    = jetstream.ErrorCode(10074)
)

// createBucket makes a bucket.
func createBucket(ctx context.Context, js jetstream.JetStream, c jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	return inCopies(c.Replicas, func(n int) (jetstream.KeyValue, error) {
		c.Replicas = n
		return js.CreateKeyValue(ctx, c)
	})
}

// inCopies has something made in so many copies; 0: as many as are safe.
func inCopies[T any](replicas int, create func(int) (T, error)) (T, error) {
	if replicas > 0 {
		return create(replicas)
	}
	made, err := create(copiesInCluster)
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == errNoCluster {
		return create(1)
	}
	return made, err
}

// nodesConfig is the bucket of announcements. They are made again every two seconds, so none needs a disk.
func nodesConfig(replicas int) *jetstream.KeyValueConfig {
	return &jetstream.KeyValueConfig{Bucket: nodeBucket, Description: "what nodes of the fleet of boxd announce", History: 1, Storage: jetstream.MemoryStorage, Replicas: replicas}
}

// claimsConfig is the bucket of claims.
func claimsConfig(replicas int) *jetstream.KeyValueConfig {
	return &jetstream.KeyValueConfig{Bucket: claimBucket, Description: "where sessions of the fleet of boxd are", History: 1, Storage: jetstream.FileStorage, Replicas: replicas}
}

// fence is what a gateway asks a node before it asks it for a session: to remember the generation, unless it knows a later one.
type fence struct {
	Owner      string `json:"owner"`
	ID         string `json:"id"`
	Generation uint64 `json:"generation"`
	Bucket     string `json:"bucket"` // that the claim is in
	Sandbox    bool   `json:"sandbox,omitempty"`
	Coming     bool   `json:"coming,omitempty"`    // from another node, which has the claim until the session is here
	Workspace  int64  `json:"workspace,omitempty"` // see sessionClaim
	Keeps      bool   `json:"keeps,omitempty"`
	Again      bool   `json:"again,omitempty"` // of a claim that the node has, not of one that is made just now
}

// fence is what a node is to remember of a claim in a bucket.
func (c *sessionClaim) fence(bucket string) *fence {
	return &fence{Owner: c.Owner, ID: c.ID, Generation: c.Generation, Bucket: bucket, Sandbox: c.Sandbox, Workspace: c.Workspace, Keeps: c.Keeps}
}

// fenced is the answer.
type fenced struct {
	OK      bool   `json:"ok"`
	Highest uint64 `json:"highest"`
	Error   string `json:"error,omitempty"`
}

// request asks a node something.
func request(ctx context.Context, nc *nats.Conn, node, what string, in, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, nodeSubject+node+"."+what, data)
	if err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	return json.Unmarshal(m.Data, out)
}
