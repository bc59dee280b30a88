// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/conns"
)

// archiveStore has archives, in chunks that are messages of a stream, and records that make them known, in a bucket. JetStream's own
// object store is not used: its Put sends a chunk that was not acknowledged again with the bytes of a later one (nats.go 1.55).
type archiveStore struct {
	bucket  string
	records jetstream.KeyValue
	stream  jetstream.Stream // of chunks
	js      jetstream.JetStream
	bulk    jetstream.JetStream // publishes chunks
	log     *slog.Logger
	grace   time.Duration // how long chunks stay of which nobody says that they are needed
}

// archived says where an archive is.
type archived struct {
	ID     string `json:"id"`
	Chunks int    `json:"chunks"`
	Size   int64  `json:"size"`
	Digest string `json:"digest"` // "sha256:…"
}

// Bounds of an archive on its way.
const (
	chunkSize     = 128 << 10 // bytes; NATS takes messages of 1 MiB
	maxUnacked    = 16        // chunks: JetStream refuses what comes faster than it writes
	chunkTimeout  = 30 * time.Second
	electionTries = 20 // while a cluster chooses a leader, nobody takes a chunk
	electionPause = 500 * time.Millisecond
	storeTimeout  = time.Minute
	uploadRenewed = time.Minute
	uploadGrace   = time.Hour
)

// uploadPrefix begins the keys of records that are none of an archive, but say that one is being stored or removed. No other key
// has a dot.
const uploadPrefix = "upload."

// chunkSubject is the subject of a chunk; "*" is each of them, and ">" those of all archives.
func (s *archiveStore) chunkSubject(id, i string) string {
	return strings.TrimSuffix("fleet.archives."+s.bucket+"."+id+"."+i, ".")
}

// How JetStream refuses what has no room: in the stream, on its disks, and on those of a cluster (NATS: server/errors.json).
const (
	errStreamFull = jetstream.ErrorCode(10077)
	errDiskFull   = jetstream.ErrorCode(10047)
	errNoPeers    = jetstream.ErrorCode(10005)
)

// Errors of archives.
var (
	errTooLarge  = errors.New("the archive is too large")
	errAbandoned = errors.New("it took too long, and what was there of it has been removed")
)

// noStore is the failure of a store: "snapshots", "images", "skills", "drives" or "outputs".
func noStore(what string, err error) error {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	switch {
	case ok && refused.ErrorCode == errStreamFull:
		return fault.Errorf(fault.Exhausted, "the %s of all owners together would have more than their limit", what).WithHint("remove some; the operator of the gateway can raise size in [%s] of gateway.toml", what)
	case ok && (refused.ErrorCode == errDiskFull || refused.ErrorCode == errNoPeers):
		return fault.Errorf(fault.Exhausted, "NATS JetStream has no room for size in [%s] of gateway.toml: %w", what, err).WithHint("the operator can give JetStream more (max_file_store), or lower that")
	case fault.KindOf(err) != fault.Internal:
		return err
	}
	return fault.Errorf(fault.Unavailable, "the store of %s does not answer: %w", what, err).WithHint("try again: NATS JetStream may be choosing a leader")
}

// readArchives opens a store as it is; nil: nothing was ever stored. what is as in noStore.
func (g *gateway) readArchives(ctx context.Context, bucket, what string) (*archiveStore, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s := &archiveStore{bucket: bucket, js: g.js, bulk: g.bulk, log: g.log, grace: uploadGrace}
	var err error
	if s.records, err = g.js.KeyValue(ctx, bucket); err == nil {
		s.stream, err = g.js.Stream(ctx, s.streamName())
	}
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil //nolint:nilnil // see above
	}
	if err != nil {
		return nil, noStore(what, err)
	}
	return s, nil
}

func (s *archiveStore) streamName() string { return archivesOf(s.bucket) }

// archivesOf is the stream with the archives of a bucket.
func archivesOf(bucket string) string { return bucket + "_archives" }

// openArchives opens a store to write to it, of at most size bytes, and makes it where it is missing.
func (g *gateway) openArchives(ctx context.Context, bucket, what string, size int64) (*archiveStore, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s := &archiveStore{bucket: bucket, js: g.js, bulk: g.bulk, log: g.log, grace: uploadGrace}
	var err error
	if s.records, _, err = openBucket(ctx, g.js, &jetstream.KeyValueConfig{Bucket: bucket, Description: "records of " + what + " of the fleet of boxd", History: 1, Storage: jetstream.FileStorage, Replicas: g.cfg.Replicas}, ""); err != nil {
		return nil, err
	}
	if s.stream, err = g.js.Stream(ctx, s.streamName()); errors.Is(err, jetstream.ErrStreamNotFound) {
		s.stream, err = inCopies(g.cfg.Replicas, func(n int) (jetstream.Stream, error) {
			return g.js.CreateStream(ctx, jetstream.StreamConfig{
				Name: s.streamName(), Description: "archives of " + what + " of the fleet of boxd", Subjects: []string{s.chunkSubject(">", "")}, Discard: jetstream.DiscardNew, MaxBytes: size,
				MaxMsgsPerSubject: 1, AllowDirect: true, Storage: jetstream.FileStorage, Replicas: n, Compression: jetstream.S2Compression,
			})
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another gateway has made it
			s.stream, err = g.js.Stream(ctx, s.streamName())
		}
	}
	if err != nil {
		return nil, err
	}
	if config := s.stream.CachedInfo().Config; config.MaxBytes != size { // the configuration has changed
		config.MaxBytes = size
		if s.stream, err = g.js.UpdateStream(ctx, config); err != nil {
			return nil, fmt.Errorf("cannot set its size to %v: %w", quantity.Size(size), err)
		}
	}
	return s, nil
}

// upload is an archive that is being stored, or removed. Its record is renewed, or somebody else removes what there is of it.
type upload struct {
	archived
	s        *archiveStore
	owner    string    // whose limit it counts for; "": nobody's
	revision uint64    // of its record
	renewed  time.Time // when that was written
}

// uploadRecord is the record of an upload.
type uploadRecord struct {
	Owner string `json:"owner,omitempty"`
	Size  int64  `json:"size,omitempty"` // bytes, when it was renewed
}

// newUpload begins to store an archive of an owner, when it has removed what others have left.
func (s *archiveStore) newUpload(ctx context.Context, owner string) (*upload, error) {
	if err := s.sweep(ctx); err != nil {
		return nil, err
	}
	u, err := s.uploadOf(ctx, archived{ID: strings.ToLower(rand.Text())})
	u.owner = owner
	return u, err
}

// uploadOf notes that the chunks of an archive can be removed if they are in no record.
func (s *archiveStore) uploadOf(ctx context.Context, a archived) (*upload, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	revision, err := s.records.Put(ctx, uploadPrefix+a.ID, []byte("{}"))
	return &upload{archived: a, s: s, revision: revision, renewed: time.Now()}, err
}

// renew says that the upload goes on; or that it was given up meanwhile.
func (u *upload) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	data, err := json.Marshal(uploadRecord{u.owner, u.Size})
	if err != nil {
		return err
	}
	revision, err := u.s.records.Update(ctx, uploadPrefix+u.ID, data, u.revision)
	if conflict(err) {
		return errAbandoned
	}
	if err == nil {
		u.revision, u.renewed = revision, time.Now()
	}
	return err
}

// others are the bytes of each archive, by id, that is being stored for the same owner. If each renews before it asks, of two that are too
// much together one at least sees the other, unless a server of a cluster lags behind. What has broken off counts until it is swept.
func (u *upload) others(ctx context.Context) (map[string]int64, error) {
	_, uploads, err := u.s.entries(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for _, entry := range uploads {
		var record uploadRecord
		if _, err := readRecord(entry, &record); err != nil {
			return nil, err
		}
		if id := strings.TrimPrefix(entry.Key(), uploadPrefix); record.Owner == u.owner && id != u.ID {
			all[id] = record.Size
		}
	}
	return all, nil
}

// uploaded says of a limit what counts for it beside what is stored.
func uploaded(beside bool) string {
	if !beside {
		return ""
	}
	return " with what is being uploaded, or was in the last hour and has broken off"
}

// keep ends an upload whose archive is in a record now. If it was given up meanwhile, forget removes that record.
func (u *upload) keep(ctx context.Context, forget func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	err := u.s.records.Delete(ctx, uploadPrefix+u.ID, jetstream.LastRevision(u.revision))
	if conflict(err) {
		err = forget(ctx)
		if known, kerr := u.s.known(ctx); kerr == nil && !known[u.ID] {
			kerr = u.drop(ctx)
			err = errors.Join(err, kerr)
		}
		return errors.Join(errAbandoned, err)
	}
	if err != nil { // sweep removes it, and sees that the archive is known
		u.s.log.Warn("the record of an upload that is done remains for an hour", "error", err)
	}
	return nil
}

// drop removes what there is of the archive. What fails is done by another upload, later.
func (u *upload) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := u.s.stream.Purge(ctx, jetstream.WithPurgeSubject(u.s.chunkSubject(u.ID, "*"))); err != nil {
		return err
	}
	return u.s.records.Delete(ctx, uploadPrefix+u.ID)
}

// remove removes archives that unlink takes out of a record, unless another record has them too. If that fails, or it is not known what
// became of it, sweep looks again.
func (s *archiveStore) remove(ctx context.Context, unlink func() error, archives ...archived) error {
	var ups []*upload
	for _, a := range archives {
		u, err := s.uploadOf(ctx, a)
		if err != nil {
			return err
		}
		ups = append(ups, u)
	}
	if err := unlink(); err != nil || len(ups) == 0 {
		return err
	}
	known, err := s.known(ctx)
	for _, u := range ups {
		switch {
		case err != nil:
		case known[u.ID]:
			err = s.records.Delete(ctx, uploadPrefix+u.ID)
		default:
			err = u.drop(ctx)
		}
	}
	if err != nil {
		s.log.Warn("an archive that nobody needs is removed later", "bucket", s.bucket, "error", err)
	}
	return nil
}

// receiving is an archive that a caller sends to be kept, and what is done with it.
type receiving struct {
	owner    string    // whose limit it counts for; "": nobody's
	body     io.Reader // nil: the body of the request
	maxBytes int64     // bytes
	tooLarge func() error
	inspect  func(*upload) error // has a node find out what it is
	fits     func(*upload) error // looks whether there is room for it, after it was renewed
	put      func() error        // makes it known
	forget   func(context.Context) error
}

// receive stores the archive of a request, and makes it known: all of it or nothing.
func (g *gateway) receive(c *call, s *archiveStore, in *receiving) error {
	release, err := g.copies.Enter(c.r.Context(), c.pass.Name)
	if err != nil {
		return err
	}
	defer release()
	ctx := c.r.Context()
	u, err := s.newUpload(ctx, in.owner)
	if err != nil {
		return err
	}
	body := in.body
	if body == nil {
		body = conns.ArchiveBody(c.w, c.r)
	}
	err = u.write(ctx, body, in.maxBytes)
	if errors.Is(err, errTooLarge) {
		err = in.tooLarge()
	}
	if err == nil {
		err = in.inspect(u)
	}
	if err == nil {
		err = u.renew(ctx) // that may have taken long
	}
	if err == nil {
		err = in.fits(u)
	}
	if err != nil {
		return errors.Join(err, u.drop(ctx))
	}
	if err := in.put(); err != nil {
		if known, kerr := s.known(ctx); fault.KindOf(err) == fault.Conflict && kerr == nil && !known[u.ID] { // another was first
			err = errors.Join(err, u.drop(ctx))
		}
		return err // it may be there: otherwise it is swept
	}
	return u.keep(ctx, in.forget)
}

// together are the bytes of archives that are stored and of those that are being stored, by id. beside: some of these are not stored yet.
func together(stored, others map[string]int64) (size int64, beside bool) {
	all := maps.Clone(stored)
	for id, n := range others {
		if _, known := stored[id]; !known {
			all[id], beside = n, true
		}
	}
	for _, n := range all {
		size += n
	}
	return size, beside
}

// put writes a record that has that revision, 0: there is none, and returns the new one.
func (s *archiveStore) put(ctx context.Context, key string, k any, revision uint64) (uint64, error) {
	data, err := json.Marshal(k)
	if err != nil {
		return 0, err
	}
	if revision == 0 {
		return s.records.Create(ctx, key, data)
	}
	return s.records.Update(ctx, key, data, revision)
}

// write stores the archive that is read from r, of at most maxBytes bytes.
func (u *upload) write(ctx context.Context, r io.Reader, maxBytes int64) error {
	sum := sha256.New()
	inFlight := &chunksInFlight{}
	err := u.send(ctx, io.TeeReader(r, sum), maxBytes, inFlight)
	if err == nil {
		err = inFlight.await(ctx, 0)
	}
	if err != nil { // what is still on its way would come after it was dropped
		timeoutCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		for inFlight.await(timeoutCtx, 0) != nil && timeoutCtx.Err() == nil && len(inFlight.acks) > 0 {
			inFlight.acks = inFlight.acks[1:]
		}
		return err
	}
	u.Digest = digestOf(sum)
	return u.renew(ctx) // it is all there, and stays for as long as its record takes
}

// send publishes what is read from r.
func (u *upload) send(ctx context.Context, r io.Reader, maxBytes int64, inFlight *chunksInFlight) error {
	for last := false; !last; {
		chunk := make([]byte, chunkSize) // sent again if need be: see archiveStore
		n, err := fill(r, chunk)
		if last = errors.Is(err, io.EOF); err != nil && !last {
			return err
		}
		if n == 0 {
			break
		}
		if u.Size += int64(n); u.Size > maxBytes {
			return errTooLarge
		}
		if err := inFlight.await(ctx, maxUnacked-1); err != nil {
			return err
		}
		ack, err := u.s.bulk.PublishMsgAsync(&nats.Msg{Subject: u.s.chunkSubject(u.ID, strconv.Itoa(u.Chunks)), Data: chunk[:n]}, jetstream.WithRetryAttempts(electionTries), jetstream.WithRetryWait(electionPause))
		if err != nil {
			return err
		}
		u.Chunks++
		inFlight.acks = append(inFlight.acks, ack)
		if time.Since(u.renewed) > uploadRenewed {
			if err := u.renew(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunksInFlight are not acknowledged yet, the oldest first.
type chunksInFlight struct{ acks []jetstream.PubAckFuture }

// await waits until at most so many are left, or one was refused.
func (w *chunksInFlight) await(ctx context.Context, atMost int) error {
	for len(w.acks) > atMost {
		select {
		case <-w.acks[0].Ok():
		case err := <-w.acks[0].Err():
			return err
		case <-time.After(chunkTimeout):
			return errors.New("a part of the archive was not acknowledged in time")
		case <-ctx.Done():
			return ctx.Err()
		}
		w.acks = w.acks[1:]
	}
	return nil
}

// fill reads until p is full. Unlike io.ReadFull it passes each error on as it is.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

func digestOf(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }

// archiveReader reads an archive, and checks it at its end.
type archiveReader struct {
	ctx  context.Context //nolint:containedctx // of the one request that reads
	s    *archiveStore
	a    archived
	sum  hash.Hash
	next int // chunk
	rest []byte
}

func (s *archiveStore) read(ctx context.Context, a archived) *archiveReader {
	return &archiveReader{ctx: ctx, s: s, a: a, sum: sha256.New()}
}

func (r *archiveReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 && r.next == r.a.Chunks {
		if got := digestOf(r.sum); got != r.a.Digest {
			return 0, damaged("its digest is %s and not %s", got, r.a.Digest)
		}
		return 0, io.EOF
	}
	if len(r.rest) == 0 {
		var err error
		if r.rest, err = r.s.chunk(r.ctx, &r.a, r.next); err != nil {
			return 0, err
		}
		r.sum.Write(r.rest)
		r.next++
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func damaged(format string, args ...any) error {
	return fault.Errorf(fault.Conflict, "the archive is damaged, or was removed meanwhile: "+format, args...).WithHint("list what there is; remove it, and make it again")
}

// How often a chunk is asked for that is not there: a server that has just joined may not have it yet.
const (
	chunkTries = 5
	chunkPause = 200 * time.Millisecond
)

func (s *archiveStore) chunk(ctx context.Context, a *archived, i int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, chunkTimeout)
	defer cancel()
	for try := 1; ; try++ {
		m, err := s.stream.GetLastMsgForSubject(ctx, s.chunkSubject(a.ID, strconv.Itoa(i)))
		switch {
		case err == nil && len(m.Data) > 0:
			return m.Data, nil
		case err == nil:
			return nil, damaged("part %d of %d is empty", i+1, a.Chunks)
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return nil, fmt.Errorf("part %d of %d: %w", i+1, a.Chunks, err)
		case try == chunkTries:
			return nil, damaged("part %d of %d is not there", i+1, a.Chunks)
		}
		select {
		case <-time.After(chunkPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// get reads a record into k. revision is 0 where there is none, and no store either.
func (s *archiveStore) get(ctx context.Context, key string, k any) (revision uint64, err error) {
	if s == nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	entry, err := s.records.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return readRecord(entry, k)
}

func readRecord(entry jetstream.KeyValueEntry, k any) (revision uint64, err error) {
	if err := json.Unmarshal(entry.Value(), k); err != nil {
		return 0, fmt.Errorf("record %s: %w", entry.Key(), err)
	}
	return entry.Revision(), nil
}

// list reads all records, but those of uploads.
func (s *archiveStore) list(ctx context.Context) ([]jetstream.KeyValueEntry, error) {
	entries, _, err := s.entries(ctx)
	return entries, err
}

func (s *archiveStore) entries(ctx context.Context) (records, uploads []jetstream.KeyValueEntry, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := listEntries(ctx, s.records)
	for _, entry := range all {
		if strings.HasPrefix(entry.Key(), uploadPrefix) {
			uploads = append(uploads, entry)
		} else {
			records = append(records, entry)
		}
	}
	return records, uploads, err
}

// sweep removes what was left of archives: by gateways that have died, and by removals that broke off. Times are of the server.
func (s *archiveStore) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	_, uploads, err := s.entries(ctx)
	if err != nil {
		return err
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		return err
	}
	old, err := s.oldMarkers(ctx, info.TimeStamp)
	if err == nil {
		err = s.purge(ctx, old)
	}
	if err != nil || len(uploads) == 0 {
		return err
	}
	var given []*upload
	for _, entry := range uploads {
		if info.TimeStamp.Sub(entry.Created()) <= s.grace {
			continue
		}
		// Whoever still stores it hears of this, and makes it known to nobody.
		u := &upload{archived: archived{ID: strings.TrimPrefix(entry.Key(), uploadPrefix)}, s: s, revision: entry.Revision()}
		switch err := u.renew(ctx); {
		case errors.Is(err, errAbandoned): // it goes on, or another gateway sees to it
		case err != nil:
			return err
		default:
			given = append(given, u)
		}
	}
	if len(given) == 0 {
		return nil
	}
	known, err := s.known(ctx) // after that: what becomes known now has renewed its record
	if err != nil {
		return err
	}
	for _, u := range given {
		var err error
		if known[u.ID] {
			err = s.records.Delete(ctx, uploadPrefix+u.ID)
		} else {
			err = u.drop(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxMarkers is how many markers of removed records are purged at a time.
const maxMarkers = 256

// oldMarkers are those that have said for long that a record was removed.
func (s *archiveStore) oldMarkers(ctx context.Context, now time.Time) (old []jetstream.KeyValueEntry, err error) {
	w, err := s.records.WatchAll(ctx, jetstream.MetaOnly())
	if err != nil {
		return nil, err
	}
	for entry := range w.Updates() {
		if entry == nil {
			break // that is all there is
		}
		if entry.Operation() != jetstream.KeyValuePut && now.Sub(entry.Created()) > s.grace && len(old) < maxMarkers {
			old = append(old, entry)
		}
	}
	_ = w.Stop() // it has told all there was
	return old, ctx.Err()
}

// purge removes markers, up to each: jetstream's PurgeDeletes would take a record with it that was made under the key since.
func (s *archiveStore) purge(ctx context.Context, old []jetstream.KeyValueEntry) error {
	if len(old) == 0 {
		return nil
	}
	stream, err := s.js.Stream(ctx, "KV_"+s.bucket)
	for _, entry := range old {
		if err == nil {
			err = stream.Purge(ctx, jetstream.WithPurgeSubject("$KV."+s.bucket+"."+entry.Key()), jetstream.WithPurgeSequence(entry.Revision()+1))
		}
	}
	return err
}

// known are the archives that records have.
func (s *archiveStore) known(ctx context.Context) (map[string]bool, error) {
	records, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, entry := range records {
		type has struct {
			Archive archived `json:"archive"`
		}
		var k struct {
			has
			Versions []has `json:"versions"` // of a drive
		}
		if _, err := readRecord(entry, &k); err != nil {
			return nil, err
		}
		known[k.Archive.ID] = true
		for i := range k.Versions {
			known[k.Versions[i].Archive.ID] = true
		}
	}
	return known, nil
}
