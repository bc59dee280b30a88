// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/places"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// A snapshot of the fleet is an export of a session: what boxctl export writes, made and restored by the gateway in the name of the
// session's owner, over the routes that the owner has. So the nodes know nothing of it, and decide about a session that is restored as
// about any new one.

// How many archives a gateway makes or restores at a time, for all callers and for one. Each has maxUnacked chunks on their way.
const (
	maxCopying    = 8
	maxOwnCopying = 2
)

var snapshotName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// manageSnapshots answers what is about snapshots.
func (g *gateway) manageSnapshots(c *call, path []string) error {
	route := c.r.Method + " /v1/fleet/snapshots" + strings.Repeat("/{name}", min(len(path), 1))
	if len(path) == 2 {
		route += "/" + path[1]
	}
	do, ok := map[string]func(*call, string, string) error{
		"GET /v1/fleet/snapshots":                 g.listSnapshots,
		"POST /v1/fleet/snapshots":                g.makeSnapshot,
		"DELETE /v1/fleet/snapshots/{name}":       g.removeSnapshot,
		"POST /v1/fleet/snapshots/{name}/restore": g.restoreSnapshot,
	}[route]
	if !ok || len(path) > 2 {
		return noRoute(c)
	}
	owner, err := c.owner()
	if err != nil {
		return err
	}
	minRole := access.User
	if c.r.Method == http.MethodGet {
		minRole = access.Viewer
	}
	if err := c.may(route, minRole); err != nil {
		return err
	}
	name := ""
	if len(path) > 0 {
		if name, err = url.PathUnescape(path[0]); err != nil || !snapshotName.MatchString(name) {
			return noSnapshot(path[0])
		}
	}
	return do(c, owner, name)
}

func noSnapshot(name string) error {
	return fault.Errorf(fault.NotFound, "no snapshot %s", fault.Show(name)).WithHint("GET /v1/fleet/snapshots lists them")
}

func (g *gateway) listSnapshots(c *call, owner, _ string) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	s, err := g.readSnapshots(ctx)
	if err != nil {
		return err
	}
	all, err := s.of(ctx, owner)
	if err != nil {
		return err
	}
	list := api.FleetSnapshotList{Snapshots: []api.FleetSnapshot{}}
	for _, k := range all {
		list.Snapshots = append(list.Snapshots, k.FleetSnapshot)
	}
	reply(c.w, http.StatusOK, list)
	return nil
}

func (g *gateway) removeSnapshot(c *call, owner, name string) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), storeTimeout)
	defer cancel()
	s, err := g.readSnapshots(ctx)
	if err != nil {
		return err
	}
	k, err := s.snapshot(ctx, owner, name)
	if err != nil {
		return err
	}
	err = s.remove(ctx, func() error { return s.records.Delete(ctx, k.key, jetstream.LastRevision(k.revision)) }, k.Archive)
	switch {
	case conflict(err):
		return fault.Errorf(fault.Conflict, "the snapshot %s has changed meanwhile", fault.Show(k.Name)).WithHint("try again")
	case err != nil:
		return noSnapshots(err)
	}
	g.events.add("snapshot_removed", "", k.Session, k.Name+" of "+owner+", by "+c.pass.Name)
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// newCopies returns the places for archives that are made or restored.
func newCopies() *places.Limit {
	return &places.Limit{
		All: maxCopying, Each: maxOwnCopying,
		Of: "snapshots, images, skills and drives are being made or restored by this gateway", Hint: "try again when one of them is done",
	}
}

// makeSnapshot stores an export of a session: POST /v1/fleet/snapshots.
func (g *gateway) makeSnapshot(c *call, owner, _ string) error {
	var req api.FleetSnapshotRequest
	if err := c.decode(&req); err != nil {
		return err
	}
	if req.Session == "" {
		return fault.Field("session", "", "the id of a session")
	}
	if req.Name == "" {
		req.Name = nameFor(req.Session, time.Now())
	}
	if !snapshotName.MatchString(req.Name) {
		return fault.Field("name", req.Name, "1 to 128 letters, digits, dots, hyphens and underscores, a letter or digit first")
	}
	release, err := g.copies.Enter(c.r.Context(), c.pass.Name)
	if err != nil {
		return err
	}
	defer release()
	ctx := c.r.Context()
	s, err := g.openSnapshots(ctx)
	if err != nil {
		return err
	}
	room, err := s.room(ctx, owner, req.Name, nil)
	if err != nil {
		return err
	}
	u, err := s.newUpload(ctx, owner)
	if err != nil {
		return noSnapshots(err)
	}
	k, err := g.snapshot(c.as(owner), u, &req, room)
	if errors.Is(err, errTooLarge) {
		err = s.tooMuch(owner, false)
	}
	if err == nil {
		k.Archive = u.archived
		if err = s.add(ctx, u, k); fault.KindOf(err) == fault.Unavailable { // it may be there: otherwise it is swept
			return err
		}
	}
	if err != nil {
		return errors.Join(noSnapshots(err), u.drop(ctx))
	}
	if err := u.keep(ctx, func(ctx context.Context) error {
		return s.records.Delete(ctx, k.key, jetstream.LastRevision(k.revision))
	}); err != nil {
		return noSnapshots(err)
	}
	g.events.add("snapshot_made", k.Node, k.Session, k.Name+" of "+owner+", by "+c.pass.Name)
	c.span.setSession(k.Session)
	reply(c.w, http.StatusCreated, k.FleetSnapshot)
	return nil
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// nameFor is the name of a snapshot for which nobody has given one.
func nameFor(session string, now time.Time) string {
	id := strings.TrimLeft(notInNames.ReplaceAllString(session, "-"), "._-")
	return cmp.Or(id[:min(len(id), 100)], "session") + now.UTC().Format("-20060102T150405.000Z")
}

// snapshot exports a session, into an archive of at most room bytes.
func (g *gateway) snapshot(c *call, u *upload, req *api.FleetSnapshotRequest, room int64) (*storedSnapshot, error) {
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	claim, err := g.claimed(ctx, c.pass.Name, req.Session)
	if err != nil {
		return nil, err
	}
	if claim.Sandbox {
		return nil, fault.Errorf(fault.Unsupported, "session %s is a sandbox of E2B's clients, whose tokens no snapshot has", fault.Show(req.Session)).WithHint("copy what it has: boxctl cp")
	}
	own := g.selfClient(c)
	info, err := own.Session(ctx, req.Session)
	if err != nil {
		return nil, refusedAs(err)
	}
	switch {
	case len(info.Inputs) > 0:
		return nil, fault.Errorf(fault.Conflict, "session %s reads a named workspace, which no snapshot has", fault.Show(info.ID)).WithHint("make a snapshot of a session that uses that workspace")
	case info.WorkspaceName != "" && !req.WithWorkspace:
		return nil, fault.Errorf(fault.Conflict, "session %s uses the named workspace %s", fault.Show(info.ID), fault.Show(info.WorkspaceName)).
			WithHint("set with_workspace (boxctl fleet snapshot --with-workspace) for a snapshot with a copy of it, which will be the new session's own")
	}
	lacks := &lacking{session: info.ID, may: req.LeaveOut}
	archive, w := io.Pipe()
	exported := make(chan error, 1)
	go func() { // ends with ctx
		err := own.Export(ctx, info.ID, w, client.ExportOptions{LeaveOut: req.LeaveOut, WithWorkspace: req.WithWorkspace, Told: lacks.add})
		w.CloseWithError(cutBy(err))
		exported <- err
	}()
	err = u.write(ctx, archive, room)
	archive.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
	if err != nil {
		cancel()
	}
	if failed := <-exported; failed != nil && (err == nil || errors.As(err, new(*cutOff))) {
		err = refusedAs(failed)
	}
	if err != nil {
		return nil, err
	}
	requestCtx, done := context.WithTimeout(ctx, requestTimeout)
	defer done()
	after, err := own.Session(requestCtx, info.ID) // of one that has ended meanwhile there is a whole snapshot
	return &storedSnapshot{
		FleetSnapshot: api.FleetSnapshot{
			Name: req.Name, Owner: c.pass.Name, Session: info.ID, Node: claim.Node, CreatedAt: time.Now().UTC(), Size: u.Size, Digest: u.Digest, LeftOut: lacks.list(),
			Running: err != nil || info.WorkspaceName != "" || // which others may use
				info.StoppedAt == nil || after.StoppedAt == nil || !info.StoppedAt.Equal(*after.StoppedAt),
		},
		key: claimKey(c.pass.Name, req.Name),
	}, nil
}

// lacking is what a snapshot lacks of its session, in words.
type lacking struct {
	session string
	may     bool
	texts   []string
	more    int // that are not in texts
}

// Bounds of what is said of a snapshot.
const (
	maxLacking     = 64
	maxLackingText = 256 // bytes
)

// add notes something, or refuses the snapshot for that.
func (l *lacking) add(what string) error {
	what = strings.ToValidUTF8(what[:min(len(what), maxLackingText)], "")
	if !l.may {
		return fault.Errorf(fault.Conflict, "a snapshot of session %s would lack: %s", fault.Show(l.session), what).WithHint("set leave_out (boxctl fleet snapshot --leave-out) to make it without what it cannot have")
	}
	if len(l.texts) == maxLacking {
		l.more++
		return nil
	}
	l.texts = append(l.texts, what)
	return nil
}

func (l *lacking) list() []string {
	list := append([]string{}, l.texts...)
	if l.more > 0 {
		list = append(list, fmt.Sprintf("and %d more", l.more))
	}
	return list
}

// cutOff is why an export ended before its end.
type cutOff struct{ error }

func cutBy(err error) error {
	if err == nil {
		return nil
	}
	return &cutOff{err}
}

// refusedAs is an error of the gateway's own client, as one that callers hear.
func refusedAs(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return asError(&e.Problem, err)
	}
	switch {
	case errors.Is(err, client.ErrUnreadable):
		return fault.Errorf(fault.Conflict, "%w", err).WithHint("set leave_out (boxctl fleet snapshot --leave-out) to make it without what the session's own user cannot read")
	case errors.Is(err, client.ErrExists):
		return fault.Errorf(fault.Conflict, "%w", err).WithHint("give the new one another id")
	case errors.Is(err, client.ErrOtherImage):
		return fault.Errorf(fault.Conflict, "%w", err).WithHint("import the image there that the session had, or name another node")
	case errors.Is(err, client.ErrNoExport), errors.Is(err, client.ErrFormat):
		return fault.Errorf(fault.Conflict, "%w", err).WithHint("another version of boxfleet has made the snapshot")
	case fault.KindOf(err) != fault.Internal:
		return err
	}
	return fault.Errorf(fault.Unavailable, "%w", err).WithHint("try again; GET /v1/fleet/nodes shows how the nodes do")
}

// restoreSnapshot makes a new session of a snapshot: POST /v1/fleet/snapshots/{name}/restore.
func (g *gateway) restoreSnapshot(c *call, owner, name string) error {
	var req api.FleetRestore
	if err := c.decode(&req); err != nil {
		return err
	}
	release, err := g.copies.Enter(c.r.Context(), c.pass.Name)
	if err != nil {
		return err
	}
	defer release()
	s, err := g.readSnapshots(c.r.Context())
	if err != nil {
		return err
	}
	k, err := s.snapshot(c.r.Context(), owner, name)
	if err != nil {
		return err
	}
	o := client.ImportOptions{ID: cmp.Or(req.ID, k.Session), ToEnd: true}
	if len(req.Placement) > 0 {
		o.Placement = req.Placement
	}
	info, err := g.selfClient(c.as(owner)).Import(c.r.Context(), s.read(c.r.Context(), k.Archive), o)
	if err != nil {
		return refusedAs(err)
	}
	out := api.FleetRestored{Session: info}
	if claim, err := g.claimOf(c.r.Context(), owner, info.ID); err == nil && claim != nil {
		out.Node = claim.Node
	}
	g.events.add("snapshot_restored", out.Node, info.ID, k.Name+" of "+owner+", by "+c.pass.Name)
	c.span.setSession(info.ID)
	reply(c.w, http.StatusCreated, out)
	return nil
}

// lastSnapshots are the names of the last snapshots, by owner and session. Without an answer there are none.
func (g *gateway) lastSnapshots(ctx context.Context) map[[2]string]string {
	names := map[[2]string]string{}
	if g.cfg.Snapshots == 0 {
		return names
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout/5) // the sessions are lost whether or not the store answers
	defer cancel()
	s, err := g.readSnapshots(ctx)
	var all []*storedSnapshot
	if err == nil {
		all, err = s.of(ctx, "")
	}
	if err != nil {
		g.log.Warn("cannot look up the last snapshots of sessions that are lost", "error", err)
	}
	for _, k := range all { // the oldest first
		names[[2]string{k.Owner, k.Session}] = k.Name
	}
	return names
}

// snapshotBucket is the store of snapshots.
const snapshotBucket = "boxd_snapshots"

// snapshotStore has the snapshots of the fleet.
type snapshotStore struct {
	*archiveStore
	perOwner int64 // bytes
}

// storedSnapshot is a snapshot and where its archive is.
type storedSnapshot struct {
	api.FleetSnapshot
	Archive  archived `json:"archive"`
	key      string
	revision uint64 // of its record
}

func noSnapshotStore() error {
	return fault.Errorf(fault.Unsupported, "this gateway keeps no snapshots").WithHint("the operator can set size in [snapshots] of gateway.toml; boxctl export makes an archive of a box")
}

// readSnapshots opens the store of snapshots as it is; nil: there is none.
func (g *gateway) readSnapshots(ctx context.Context) (*snapshotStore, error) {
	if g.cfg.Snapshots == 0 {
		return nil, noSnapshotStore()
	}
	files, err := g.readArchives(ctx, snapshotBucket, "snapshots")
	if files == nil {
		return nil, err
	}
	return &snapshotStore{files, g.cfg.OwnerSnapshots}, nil
}

// openSnapshots opens the store of snapshots to write to it.
func (g *gateway) openSnapshots(ctx context.Context) (*snapshotStore, error) {
	if g.cfg.Snapshots == 0 {
		return nil, noSnapshotStore()
	}
	files, err := g.openArchives(ctx, snapshotBucket, "snapshots", g.cfg.Snapshots)
	if err != nil {
		return nil, noSnapshots(err)
	}
	return &snapshotStore{files, g.cfg.OwnerSnapshots}, nil
}

func noSnapshots(err error) error { return noStore("snapshots", err) }

// of reads the snapshots of an owner, "": of all, the oldest first.
func (s *snapshotStore) of(ctx context.Context, owner string) ([]*storedSnapshot, error) {
	if s == nil {
		return nil, nil
	}
	entries, err := s.list(ctx)
	if err != nil {
		return nil, noSnapshots(err)
	}
	var all []*storedSnapshot
	for _, entry := range entries {
		k := &storedSnapshot{key: entry.Key()}
		if k.revision, err = readRecord(entry, k); err != nil {
			return nil, noSnapshots(err)
		}
		if owner == "" || k.Owner == owner {
			all = append(all, k)
		}
	}
	slices.SortStableFunc(all, func(a, b *storedSnapshot) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return all, nil
}

// snapshot reads a snapshot.
func (s *snapshotStore) snapshot(ctx context.Context, owner, name string) (*storedSnapshot, error) {
	if s == nil {
		return nil, noSnapshot(name)
	}
	k := &storedSnapshot{key: claimKey(owner, name)}
	var err error
	if k.revision, err = s.get(ctx, k.key, k); err != nil {
		return nil, noSnapshots(err)
	}
	if k.revision == 0 {
		return nil, noSnapshot(name)
	}
	return k, nil
}

// room is how many bytes a new snapshot of an owner may have, beside those that are being stored.
func (s *snapshotStore) room(ctx context.Context, owner, name string, others map[string]int64) (int64, error) {
	all, err := s.of(ctx, owner)
	if err != nil {
		return 0, err
	}
	room := s.perOwner
	for _, k := range all {
		if k.Name == name {
			return 0, nameTaken(name)
		}
		room -= k.Size
		delete(others, k.Archive.ID) // it is there now
	}
	for _, size := range others {
		room -= size
	}
	if room <= 0 {
		return 0, s.tooMuch(owner, len(others) > 0)
	}
	return room, nil
}

func nameTaken(name string) error {
	return fault.Errorf(fault.Conflict, "there is a snapshot %s already", fault.Show(name)).WithHint("give the new one another name, or remove that first")
}

func (s *snapshotStore) tooMuch(owner string, beside bool) error {
	return fault.Errorf(fault.Exhausted, "the snapshots of %s would have more than %v%s, the limit", fault.Show(owner), quantity.Size(s.perOwner), uploaded(beside)).
		WithHint("remove some: boxctl fleet rm-snapshot; the operator of the gateway can raise [snapshots] owner_size")
}

// add makes a snapshot known whose parts are there. Others of the owner may have been made meanwhile.
func (s *snapshotStore) add(ctx context.Context, u *upload, k *storedSnapshot) error {
	others, err := u.others(ctx)
	if err != nil {
		return noSnapshots(err)
	}
	room, err := s.room(ctx, k.Owner, k.Name, others)
	if err != nil {
		return err
	}
	if k.Size > room {
		return s.tooMuch(k.Owner, len(others) > 0)
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	k.revision, err = s.records.Create(ctx, k.key, data)
	if conflict(err) {
		return nameTaken(k.Name)
	}
	if err != nil {
		return fault.Errorf(fault.Unavailable, "it is not known whether the snapshot %s was made: %w", fault.Show(k.Name), err).WithHint("GET /v1/fleet/snapshots says whether it is there")
	}
	return nil
}
