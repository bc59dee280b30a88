// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// outputBucket has the output of processes whose session a node has ended for another: a value with what it is, and parts.
const outputBucket = "boxd_outputs"

const (
	outputsKept = 7 * 24 * time.Hour
	maxAbout    = 8 << 10  // bytes of what is said of output
	aboutKey    = ".about" // ends the key of that
	outputCosts = 4 << 10  // bytes that output counts besides, as its records are not nothing
)

var outputName = regexp.MustCompile(`^[A-Za-z0-9_-]{32}$`)

// storedOutput is what is said of output, and how it is kept.
type storedOutput struct {
	api.FleetOutput
	Parts  int `json:"parts"`
	Packed int `json:"packed"`
	key    string
}

// outputStore is that bucket.
type outputStore struct {
	kv       jetstream.KeyValue
	stream   jetstream.Stream // of the bucket
	perOwner int64            // bytes
}

func noOutputs(err error) error { return noStore("outputs", err) }

func noOutput(name string) error {
	return fault.Errorf(fault.NotFound, "no output %s", fault.Show(name)).WithHint("GET /v1/fleet/outputs lists what is kept")
}

const damagedOutput = "try again: its node may be handing it over again"

func noOutputStore() error {
	return fault.Errorf(fault.Unsupported, "this gateway keeps no output of boxes that nodes end").WithHint("the operator can set size in [outputs] of gateway.toml")
}

// subscribeOutputs begins to answer nodes, until the connection to NATS is closed, if this gateway keeps output; that output was lost it hears
// anyway. One message is taken at a time.
func (g *gateway) subscribeOutputs() error {
	_, err := g.nc.QueueSubscribe(lostSubject, "gateways", g.handleLost)
	if err == nil && g.cfg.Outputs > 0 {
		_, err = g.nc.QueueSubscribe(outputSubject, "gateways", g.takeOutput)
	}
	return err
}

// handleLost notes that output was not kept.
func (g *gateway) handleLost(m *nats.Msg) {
	p, err := readPart(m)
	if err != nil {
		g.log.Warn("a message about output is not one of a node", "error", err)
		return
	}
	if _, ok := g.node(p.Node); !ok {
		return
	}
	g.events.add("output_lost", p.Node, p.Session, p.label()+": "+p.Lost)
	g.log.Warn("the output of a session that its node has ended is not kept", "node", p.Node, "session", p.Session, "owner", p.Owner, "process", p.Process, "reason", p.Lost)
}

// takeOutput answers a node that hands output over.
func (g *gateway) takeOutput(m *nats.Msg) {
	p, err := readPart(m)
	if err == nil && !strings.HasPrefix(m.Reply, nodeSubject+p.Node+".output.") { // a gateway publishes to no other subject because a node says so
		err = fmt.Errorf("node %q wants its answer at %q", p.Node, m.Reply)
	}
	if err != nil {
		g.log.Warn("a message about output is not one of a node", "error", err)
		return
	}
	switch _, known := g.node(p.Node); {
	case !known:
		err = fault.Errorf(fault.Unavailable, "this gateway does not know node %s yet", fault.Show(p.Node)).WithHint("the node tries again")
	case !p.Ask:
		err = g.keepPart(g.baseCtx, p, m.Data)
	}
	var out outputTaken
	if err != nil {
		out = outputTaken{Error: err.Error(), Again: fault.KindOf(err) == fault.Unavailable}
	}
	data, err := json.Marshal(&out)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		g.log.Warn("cannot answer a node that hands output over", "error", err)
	}
}

// label says in an event whose output it is.
func (p *outputPart) label() string {
	if p.Process == "" {
		return "box of " + p.Owner
	}
	return "process " + p.Process + " of " + p.Owner
}

// keepPart stores a part, or says that all of them are there: only then is the output known.
func (g *gateway) keepPart(ctx context.Context, p *outputPart, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := g.openOutputs(ctx)
	if err != nil {
		return err
	}
	p.Name = claimKey(fmt.Sprint(p.Node, " ", p.Generation), p.Session+"\x00"+p.Process) // the same if its node hands it over again
	key := ownersKey(p.Owner) + p.Name
	if p.Part == 0 || p.Part == p.Parts {
		if err := s.makeRoom(ctx, key, p); err != nil {
			return err
		}
	}
	if p.Part < p.Parts {
		_, err = s.kv.Put(ctx, key+"."+strconv.Itoa(p.Part), data)
		return outputFault(err)
	}
	p.KeptAt = time.Now().UTC()
	about, err := json.Marshal(storedOutput{FleetOutput: p.FleetOutput, Parts: p.Parts, Packed: p.Packed})
	if err != nil {
		return err
	}
	if _, err := s.kv.Put(ctx, key+aboutKey, about); err != nil {
		return outputFault(err)
	}
	g.events.add("output_kept", p.Node, p.Session, fmt.Sprintf("%s, %d bytes: %s", p.label(), p.Size, p.Why))
	return nil
}

func outputFault(err error) error {
	if err == nil {
		return nil
	}
	return noOutputs(err)
}

// ownersKey begins the keys of what an owner has.
func ownersKey(owner string) string { return claimKey(owner, "") + "." }

// readOutputs opens the store as it is; nil: there is none.
func (g *gateway) readOutputs(ctx context.Context) (*outputStore, error) {
	if g.cfg.Outputs == 0 {
		return nil, noOutputStore()
	}
	kv, err := g.js.KeyValue(ctx, outputBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, nil //nolint:nilnil // nothing was ever kept
	}
	if err != nil {
		return nil, noOutputs(err)
	}
	stream, err := g.js.Stream(ctx, outputStream)
	return &outputStore{kv, stream, g.cfg.OwnerOutputs}, outputFault(err)
}

// openOutputs opens the store to write to it, and makes it where it is missing.
func (g *gateway) openOutputs(ctx context.Context) (*outputStore, error) {
	if g.cfg.Outputs == 0 {
		return nil, noOutputStore()
	}
	kv, _, err := openBucket(ctx, g.js, &jetstream.KeyValueConfig{
		Bucket: outputBucket, Description: "output of processes that nodes of the fleet of boxd have ended", History: 1, TTL: outputsKept, MaxBytes: g.cfg.Outputs,
		Storage: jetstream.FileStorage, Replicas: g.cfg.Replicas,
	}, "")
	if err != nil {
		return nil, noOutputs(err)
	}
	stream, err := g.js.Stream(ctx, outputStream)
	if err != nil {
		return nil, noOutputs(err)
	}
	if config := stream.CachedInfo().Config; config.MaxBytes != g.cfg.Outputs { // the configuration has changed
		config.MaxBytes = g.cfg.Outputs
		if stream, err = g.js.UpdateStream(ctx, config); err != nil {
			return nil, noOutputs(err)
		}
	}
	return &outputStore{kv, stream, g.cfg.OwnerOutputs}, nil
}

// outputStream is the stream of outputBucket.
const outputStream = "KV_" + outputBucket

// of reads what is kept of an owner, the oldest first.
func (s *outputStore) of(ctx context.Context, owner string) ([]*storedOutput, error) {
	if s == nil {
		return nil, nil
	}
	entries, err := listMatching(ctx, s.kv, ownersKey(owner)+"*"+aboutKey)
	if err != nil {
		return nil, noOutputs(err)
	}
	all := make([]*storedOutput, len(entries))
	for i, entry := range entries {
		all[i] = &storedOutput{key: entry.Key()[:len(entry.Key())-len(aboutKey)]}
		if _, err := readRecord(entry, all[i]); err != nil {
			return nil, noOutputs(err)
		}
	}
	slices.SortStableFunc(all, func(a, b *storedOutput) int { return a.KeptAt.Compare(b.KeptAt) })
	return all, nil
}

// makeRoom removes the oldest output of an owner that would have too much.
func (s *outputStore) makeRoom(ctx context.Context, key string, p *outputPart) error {
	if int64(p.Packed+outputCosts) > s.perOwner {
		return fault.Errorf(fault.Exhausted, "it has %d bytes, and owner_size in [outputs] of gateway.toml is less", p.Packed).WithHint("the operator of the gateway can raise it")
	}
	all, err := s.of(ctx, p.Owner)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(k *storedOutput) bool { return k.key == key })
	size := int64(p.Packed + outputCosts)
	for _, k := range all {
		size += int64(k.Packed + outputCosts)
	}
	for ; size > s.perOwner && len(all) > 0; all = all[1:] {
		if err := s.remove(ctx, all[0].key); err != nil {
			return err
		}
		size -= int64(all[0].Packed + outputCosts)
	}
	return nil
}

// remove removes output for good, with all its parts.
func (s *outputStore) remove(ctx context.Context, key string) error {
	return outputFault(s.stream.Purge(ctx, jetstream.WithPurgeSubject("$KV."+outputBucket+"."+key+".>")))
}

// find reads what is said of output.
func (s *outputStore) find(ctx context.Context, owner, name string) (*storedOutput, error) {
	if s == nil || !outputName.MatchString(name) {
		return nil, noOutput(name)
	}
	k := &storedOutput{key: ownersKey(owner) + name}
	entry, err := s.kv.Get(ctx, k.key+aboutKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, noOutput(name)
	}
	if err == nil {
		_, err = readRecord(entry, k)
	}
	return k, outputFault(err)
}

// read reads output, packed.
func (s *outputStore) read(ctx context.Context, owner, name string) ([]byte, error) {
	k, err := s.find(ctx, owner, name)
	if err != nil {
		return nil, err
	}
	var all []byte
	for i := 0; err == nil && i < k.Parts; i++ {
		var entry jetstream.KeyValueEntry
		if entry, err = s.kv.Get(ctx, k.key+"."+strconv.Itoa(i)); err == nil {
			all = append(all, entry.Value()...)
		}
	}
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound): // also if it makes room just now
		return nil, noOutput(name)
	case err != nil:
		return nil, noOutputs(err)
	case len(all) != k.Packed:
		return nil, fault.Errorf(fault.Conflict, "the output %s is damaged: it has %d bytes of %d", fault.Show(name), len(all), k.Packed).WithHint(damagedOutput)
	}
	return all, nil
}

// manageOutputs answers what is about output that is kept, of the caller or of the owner in the query.
func (g *gateway) manageOutputs(c *call, path []string) error {
	route, minRole := c.r.Method+" /v1/fleet/outputs"+strings.Repeat("/{name}", len(path)), access.Viewer
	switch route {
	case "GET /v1/fleet/outputs", "GET /v1/fleet/outputs/{name}":
	case "DELETE /v1/fleet/outputs/{name}":
		minRole = access.User
	default:
		return noRoute(c)
	}
	owner, err := c.owner()
	if err != nil {
		return err
	}
	if err := c.may(route, minRole); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), storeTimeout)
	defer cancel()
	s, err := g.readOutputs(ctx)
	if err != nil {
		return err
	}
	switch {
	case c.r.Method == http.MethodDelete:
		return g.removeOutput(ctx, c, s, owner, path[0])
	case len(path) == 1:
		return g.sendOutput(ctx, c, s, owner, path[0])
	}
	all, err := s.of(ctx, owner)
	if err != nil {
		return err
	}
	list := api.FleetOutputList{Outputs: []api.FleetOutput{}}
	for _, k := range all {
		list.Outputs = append(list.Outputs, k.FleetOutput)
	}
	reply(c.w, http.StatusOK, list)
	return nil
}

func (g *gateway) removeOutput(ctx context.Context, c *call, s *outputStore, owner, name string) error {
	k, err := s.find(ctx, owner, name)
	if err != nil {
		return err
	}
	if err := s.remove(ctx, k.key); err != nil {
		return err
	}
	g.events.add("output_removed", k.Node, k.Session, "process "+k.Process+" of "+owner+", by "+c.pass.Name)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// sendOutput sends output as GET …/processes/{p}/logs of a node does with format=ndjson.
func (g *gateway) sendOutput(ctx context.Context, c *call, s *outputStore, owner, name string) error {
	release, err := g.copies.Enter(ctx, c.pass.Name)
	if err != nil {
		return err
	}
	defer release()
	packed, err := s.read(ctx, owner, name)
	if err != nil {
		return err
	}
	lines, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return fault.Errorf(fault.Conflict, "the output %s is damaged: %w", fault.Show(name), err).WithHint(damagedOutput)
	}
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(storeTimeout)) // who does not read keeps nobody from the store; the gateway itself has none
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	if _, err := io.Copy(c.w, lines); err != nil { //nolint:gosec // as much as its node says; nothing of it is kept here
		panic(http.ErrAbortHandler) // only this tells a client that there is more
	}
	return nil
}
