// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// The drives of a fleet belong to their owners. Each version is an archive in JetStream, with the number that the gateway has given it and
// the digest that a node has found. A node gets one, under its number, when it is asked for the first session with it, and proves by its
// digest that it has the same.

// driveBucket is the store of drives.
const driveBucket = "boxd_drives"

// Bounds of the records of drives.
const (
	maxDrives        = 1024 // of an owner, and as many of removed ones
	maxDriveVersions = 10   // of a drive: of more the oldest goes, as on a node without further settings
)

// storedDrive is a drive of the fleet.
type storedDrive struct {
	Owner    string          `json:"owner"`
	Name     string          `json:"name"`
	Created  time.Time       `json:"created"`
	Updated  time.Time       `json:"updated"`
	Last     int             `json:"last"`     // highest number of any version so far: nodes may still have it
	Versions []storedVersion `json:"versions"` // the newest last; none: it was removed
	revision uint64          // of its record
}

// storedVersion is a version of a drive and where its archive is.
type storedVersion struct {
	api.DriveVersion
	Into    string   `json:"into"` // directory of the drive that the archive is for
	Archive archived `json:"archive"`
}

// neededDrive is a version of a drive that a session has to have.
type neededDrive struct {
	name, digest string
	version      int
	newest       bool // the session takes the newest version that the node has
}

func driveKey(owner, name string) string { return claimKey(owner, "drive "+name) }

func (d *neededDrive) key(owner string) string {
	return fmt.Sprintf("drive %s %d %t %s", driveKey(owner, d.name), d.version, d.newest, d.digest)
}

func noDrives(err error) error { return noStore("drives", err) }

func noDrive(name string) error {
	return fault.Errorf(fault.NotFound, "the fleet has no drive %s of yours", fault.Show(name)).WithHint("list drives: boxctl drives ls")
}

// errSameContent means that a new version would equal the newest one.
var errSameContent = errors.New("the content is that of the newest version")

// driveStore has the drives of the fleet.
type driveStore struct {
	*archiveStore
	perOwner int64 // bytes of archives
}

// readDrives opens the store of drives as it is; nil: nobody has stored one.
func (g *gateway) readDrives(ctx context.Context) (*driveStore, error) {
	s, err := g.readArchives(ctx, driveBucket, "drives")
	if s == nil {
		return nil, err
	}
	return &driveStore{s, g.cfg.OwnerDrives}, nil
}

// openDrives opens the store of drives to write to it.
func (g *gateway) openDrives(ctx context.Context) (*driveStore, error) {
	s, err := g.openArchives(ctx, driveBucket, "drives", g.cfg.Drives)
	if err != nil {
		return nil, noDrives(err)
	}
	return &driveStore{s, g.cfg.OwnerDrives}, nil
}

// drives answers what is about the drives of the fleet.
func (g *gateway) drives(c *call, path []string) error {
	owner, err := c.owner()
	if err != nil {
		return err
	}
	name, route := "", c.r.Method+" /v1/drives"
	if c.r.Method == http.MethodHead {
		route = "GET /v1/drives"
	}
	if len(path) > 0 {
		if name, err = url.PathUnescape(path[0]); err != nil {
			return fault.Field("path", c.r.URL.EscapedPath(), "percent-encoded")
		}
		route += strings.Join(append([]string{"/{drive}"}, path[1:]...), "/")
	}
	do, ok := map[string]func(*call, *driveStore, string, string) error{
		"GET /v1/drives":                   listDrives,
		"GET /v1/drives/{drive}":           showDrive,
		"DELETE /v1/drives/{drive}":        removeDrive,
		"POST /v1/drives/{drive}/versions": g.fillDrive,
		"POST /v1/drives/{drive}/pushed":   pushedDrive,
		"GET /v1/drives/{drive}/index":     g.readDrive,
		"GET /v1/drives/{drive}/text":      g.readDrive,
		"GET /v1/drives/{drive}/archive":   g.readDrive,
	}[route]
	if !ok || g.cfg.Drives == 0 {
		return onNodes(c)
	}
	minRole := access.Viewer
	if !strings.HasPrefix(route, "GET") || strings.HasSuffix(route, "/archive") {
		minRole = access.User
	}
	if err := c.may(route, minRole); err != nil {
		return err
	}
	var s *driveStore
	if strings.HasSuffix(route, "/versions") {
		s, err = g.openDrives(c.r.Context())
	} else {
		s, err = g.readDrives(c.r.Context())
	}
	if err != nil {
		return err
	}
	return do(c, s, owner, name)
}

// all reads the drives of an owner, by name, and those that were removed.
func (s *driveStore) all(ctx context.Context, owner string) (present, removed []*storedDrive, err error) {
	if s == nil {
		return nil, nil, nil
	}
	entries, err := s.list(ctx)
	if err != nil {
		return nil, nil, noDrives(err)
	}
	for _, entry := range entries {
		k := &storedDrive{}
		if k.revision, err = readRecord(entry, k); err != nil {
			return nil, nil, noDrives(err)
		}
		switch {
		case k.Owner != owner:
		case len(k.Versions) == 0:
			removed = append(removed, k)
		default:
			present = append(present, k)
		}
	}
	slices.SortFunc(present, func(a, b *storedDrive) int { return strings.Compare(a.Name, b.Name) })
	return present, removed, nil
}

// record reads the record of a drive, which may have been removed; nil: there is none.
func (s *driveStore) record(ctx context.Context, owner, name string) (k *storedDrive, err error) {
	if s == nil {
		return nil, nil //nolint:nilnil // there is none, and nothing has failed
	}
	k = &storedDrive{}
	if k.revision, err = s.get(ctx, driveKey(owner, name), k); err != nil {
		return nil, noDrives(err)
	}
	if k.revision == 0 {
		return nil, nil //nolint:nilnil // the same
	}
	return k, nil
}

// drive reads a drive that is there.
func (s *driveStore) drive(ctx context.Context, owner, name string) (*storedDrive, error) {
	k, err := s.record(ctx, owner, name)
	if err == nil && (k == nil || len(k.Versions) == 0) {
		err = noDrive(name)
	}
	return k, err
}

func (s *driveStore) write(ctx context.Context, k *storedDrive) (err error) {
	k.Updated = time.Now().UTC()
	k.revision, err = s.put(ctx, driveKey(k.Owner, k.Name), k, k.revision)
	return err
}

// version is that of a number, 0 for the newest; nil: the fleet does not have it.
func (k *storedDrive) version(number int) *storedVersion {
	if n := len(k.Versions); number == 0 && n > 0 {
		return &k.Versions[n-1]
	}
	i := slices.IndexFunc(k.Versions, func(v storedVersion) bool { return v.Version == number })
	if i < 0 {
		return nil
	}
	return &k.Versions[i]
}

// requestedVersion is the version of a drive that a request names.
func (k *storedDrive) requestedVersion(c *call) (v *storedVersion, number int, err error) {
	if text := c.r.URL.Query().Get("version"); text != "" {
		if number, err = strconv.Atoi(text); err != nil || number < 1 {
			return nil, 0, fault.Field("version", text, "a version number")
		}
	}
	if v = k.version(number); v == nil {
		return nil, 0, k.noVersion(number)
	}
	return v, number, nil
}

func (k *storedDrive) noVersion(number int) error {
	return fault.Errorf(fault.NotFound, "the fleet has no version %d of drive %s", number, fault.Show(k.Name)).WithHint("list its versions: boxctl drives show")
}

// answer is how boxd calls the same.
func (k *storedDrive) answer() api.Drive {
	d := api.Drive{Name: k.Name, CreatedAt: k.Created, Versions: []api.DriveVersion{}}
	for i := range k.Versions {
		d.Versions = append(d.Versions, k.Versions[i].DriveVersion)
	}
	return d
}

func listDrives(c *call, s *driveStore, owner, _ string) error {
	all, _, err := s.all(c.r.Context(), owner)
	if err != nil {
		return err
	}
	list := api.DriveList{Drives: []api.Drive{}}
	for _, k := range all {
		list.Drives = append(list.Drives, k.answer())
	}
	reply(c.w, http.StatusOK, list)
	return nil
}

func showDrive(c *call, s *driveStore, owner, name string) error {
	k, err := s.drive(c.r.Context(), owner, name)
	if err != nil {
		return err
	}
	reply(c.w, http.StatusOK, k.answer())
	return nil
}

// readDrive has a node that has a version, or takes it, answer for it.
func (g *gateway) readDrive(c *call, s *driveStore, owner, name string) error {
	k, err := s.drive(c.r.Context(), owner, name)
	if err != nil {
		return err
	}
	v, _, err := k.requestedVersion(c)
	if err != nil {
		return err
	}
	own := c.as(owner)
	own.pass = access.Pass{Principal: access.Principal{Name: owner, Role: access.User}} // who may read it here has it sent to a node
	own.r = c.r.Clone(c.r.Context())
	query := own.r.URL.Query()
	query.Del("owner") // the owner is who asks
	query.Set("version", strconv.Itoa(v.Version))
	own.r.URL.RawQuery = query.Encode()
	want := &needs{drives: []neededDrive{{name: name, version: v.Version, digest: v.Digest}}}
	node := g.having(own, want)
	if node == "" {
		release, err := g.copies.Enter(c.r.Context(), c.pass.Name)
		if err != nil {
			return err
		}
		node, err = g.provideAny(own, &placement{}, want)
		release()
		if err != nil {
			return err
		}
	}
	return g.pass(own, node, nil)
}

// having is a node that has the one version of a drive that is needed, if one of those that are asked says so: first those that had it.
func (g *gateway) having(c *call, want *needs) string {
	d, near := &want.drives[0], g.near(want, c.pass.Name)
	nodes := slices.DeleteFunc(g.known(), func(n nodeState) bool { return n.lost })
	slices.SortStableFunc(nodes, func(a, b nodeState) int { return cmp.Compare(near[b.Name], near[a.Name]) })
	for i := range nodes[:min(len(nodes), maxSelect)] {
		var drive api.Drive
		ok, err := g.get(c, &nodes[i], "/v1/drives/"+url.PathEscape(d.name), &drive)
		if err == nil && ok && slices.ContainsFunc(drive.Versions, func(v api.DriveVersion) bool { return v.Version == d.version && v.Digest == d.digest }) {
			g.note(d.key(c.pass.Name), nodes[i].Name)
			return nodes[i].Name
		}
	}
	return ""
}

// removeDrive removes a drive, or a version of it, from the fleet. Nodes keep theirs.
func removeDrive(c *call, s *driveStore, owner, name string) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), storeTimeout)
	defer cancel()
	k, err := s.drive(ctx, owner, name)
	if err != nil {
		return err
	}
	v, number, err := k.requestedVersion(c)
	if err != nil {
		return err
	}
	var removed []archived
	switch {
	case number == 0:
		for i := range k.Versions {
			removed = append(removed, k.Versions[i].Archive)
		}
		k.Versions = nil
	case v == k.version(0):
		return fault.Errorf(fault.Conflict, "version %d of drive %s is its newest, which nodes may have given to sessions", number, fault.Show(name)).WithHint("fill the drive with other content first, or remove all of it")
	default:
		removed = []archived{v.Archive}
		k.Versions = slices.DeleteFunc(slices.Clone(k.Versions), func(v storedVersion) bool { return v.Version == number })
	}
	err = s.remove(ctx, func() error {
		if err := s.forgetOldest(ctx, owner, number == 0); err != nil {
			return err
		}
		return s.write(ctx, k)
	}, removed...)
	if err != nil {
		return changedDrive(name, err)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// pushedDrive records that a version is stored elsewhere too.
func pushedDrive(c *call, s *driveStore, owner, name string) error {
	var pushed api.DrivePushed
	if err := c.decode(&pushed); err != nil {
		return err
	}
	k, err := s.drive(c.r.Context(), owner, name)
	if err != nil {
		return err
	}
	v := k.version(pushed.Version)
	if v == nil || pushed.Version == 0 {
		return k.noVersion(pushed.Version)
	}
	v.PushedAt = time.Now().UTC()
	ctx, cancel := context.WithTimeout(c.r.Context(), requestTimeout)
	defer cancel()
	if err := s.write(ctx, k); err != nil {
		return changedDrive(name, err)
	}
	reply(c.w, http.StatusOK, k.answer())
	return nil
}

// changedDrive is the error for a record that was not written.
func changedDrive(name string, err error) error {
	if conflict(err) {
		return fault.Errorf(fault.Conflict, "the drive %s has changed meanwhile", fault.Show(name)).WithHint("try again")
	}
	return noDrives(err)
}

// forgetOldest removes the oldest record of a removed drive of an owner who has as many as may be, when another is removed.
func (s *driveStore) forgetOldest(ctx context.Context, owner string, another bool) error {
	if !another {
		return nil
	}
	_, removed, err := s.all(ctx, owner)
	if err != nil || len(removed) < maxDrives {
		return err
	}
	oldest := slices.MinFunc(removed, func(a, b *storedDrive) int { return a.Updated.Compare(b.Updated) })
	if err := s.records.Delete(ctx, driveKey(owner, oldest.Name), jetstream.LastRevision(oldest.revision)); err != nil && !conflict(err) {
		return err
	}
	return nil
}

// fillDrive stores an archive as the next version of a drive, when a node has found that it can be one.
func (g *gateway) fillDrive(c *call, s *driveStore, owner, name string) error {
	query := c.r.URL.Query()
	for _, name := range []string{"add", "as_version", "dry_run"} {
		if query.Has(name) && query.Get(name) != "false" {
			return fault.Field(name, query.Get(name), "left out at a gateway, where an archive is all of a version").WithHint("fill the drive with all that it is to have")
		}
	}
	into, err := intoOf(query)
	if err != nil {
		return err
	}
	body, origin, err := g.contentFor(c, owner, query)
	if err != nil {
		return err
	}
	defer body.Close()
	ctx := c.r.Context()
	v := &storedVersion{Into: into}
	k := &storedDrive{}
	err = g.receive(c, s.archiveStore, &receiving{
		owner: owner, body: body, maxBytes: s.perOwner, tooLarge: func() error { return s.tooMuch(owner, false) },
		inspect: func(u *upload) error {
			v.Archive = u.archived
			err := g.inspectDrive(c.as(owner), s, v, name, query.Get("digest"))
			v.Origin = origin
			return err
		},
		fits: func(u *upload) (err error) {
			k, err = s.fits(ctx, u, name, v, query.Get("if_version"))
			return err
		},
		put:    func() error { return s.putVersion(ctx, k) },
		forget: func(ctx context.Context) error { return s.forgetVersion(ctx, k, v) },
	})
	code := http.StatusCreated
	switch {
	case errors.Is(err, errSameContent):
		code, v = http.StatusOK, k.version(0)
	case err != nil:
		return noDrives(err)
	default:
		g.events.add("drive_filled", "", "", fmt.Sprintf("%s@%d of %s %s", name, v.Version, owner, v.Digest))
	}
	reply(c.w, code, v.DriveVersion)
	return nil
}

// maxPath is the longest path that a record of a drive has, in bytes.
const maxPath = 1024

// intoOf is the directory of the drive that an archive is for, after what is said of the version was looked at.
func intoOf(query url.Values) (string, error) {
	if text := query.Get("if_version"); text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 0 {
			return "", fault.Field("if_version", text, "a version number, or 0")
		}
	}
	into := query.Get("into")
	for _, name := range []string{"into", "session", "path", "output_version"} {
		if n := len(query.Get(name)); n > maxPath {
			return "", fault.Field(name, fault.Word(fmt.Sprintf("of %d bytes", n)), fmt.Sprintf("at most %d bytes", maxPath))
		}
	}
	if into == "" {
		return "", nil
	}
	return path.Clean(into), nil
}

// outputs is where executions of a session have their outputs, by version.
const outputs = "/workspace/output/"

// contentFor is what a version is made of: an archive in the body of the request, or a directory of a session, packed in its box.
func (g *gateway) contentFor(c *call, owner string, query url.Values) (io.ReadCloser, string, error) {
	id, path, output := query.Get("session"), query.Get("path"), query.Get("output_version")
	switch {
	case id == "" && path == "" && output == "":
		return io.NopCloser(conns.ArchiveBody(c.w, c.r)), "", nil
	case id == "":
		return nil, "", fault.Field("session", "", "the session that has path or output_version")
	case (path == "") == (output == ""):
		return nil, "", fault.Field("path", path, "a directory of the session, or left out with output_version")
	case strings.Contains(output, "/") || strings.HasPrefix(output, "."):
		return nil, "", fault.Field("output_version", output, "the name of a version of outputs")
	case output != "":
		path = outputs + output
	}
	claim, err := g.claimed(c.r.Context(), owner, id)
	switch {
	case err != nil:
		return nil, "", err
	case claim.State == api.FleetClaimLost:
		return nil, "", g.lost(claim)
	case claim.State == api.FleetClaimMoving:
		return nil, "", moving(claim)
	}
	n, ok := g.node(claim.Node)
	if !ok {
		return nil, "", unreached(claim.Node, errNoResponder)
	}
	resp, err := g.request(c.as(owner), &n, http.MethodGet, "/v1/sessions/"+url.PathEscape(id)+"/archive?"+url.Values{"path": {path}, "no_hard_links": {"true"}}.Encode(), nil)
	if err != nil {
		return nil, "", unreached(n.Name, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, "", asFault(resp)
	}
	return &packed{resp.Body, n.Name}, "session " + id + ", " + path, nil
}

// packed is an archive that a node makes of files of a session.
type packed struct {
	io.ReadCloser
	node string
}

func (p *packed) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fault.Errorf(fault.Unavailable, "node %s has broken off the archive of the session: %w", p.node, err).WithHint("boxctl cp of that directory says why")
	}
	return n, err
}

// inspectDrive has a node say what version an archive would be.
func (g *gateway) inspectDrive(c *call, s *driveStore, v *storedVersion, name, digest string) error {
	var version api.DriveVersion
	err := g.onAny(func(n *nodeState) error {
		version = api.DriveVersion{}
		err := g.sendArchive(c, n, s.archiveStore, v.Archive, "/v1/drives/"+url.PathEscape(name)+"/versions?"+url.Values{"dry_run": {"true"}, "into": {v.Into}}.Encode(), &version)
		if err == nil && !strings.HasPrefix(version.Digest, "sha256:") {
			err = unreached(n.Name, fmt.Errorf("the digest of the content is %s", fault.Show(version.Digest)))
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case digest != "" && digest != version.Digest:
		return fault.Field("digest", digest, version.Digest+", that of the content").Of(fault.Conflict)
	}
	v.DriveVersion = api.DriveVersion{Digest: version.Digest, Bytes: version.Bytes, Entries: version.Entries, CreatedAt: time.Now().UTC()}
	return nil
}

func (s *driveStore) tooMuch(owner string, beside bool) error {
	return fault.Errorf(fault.Exhausted, "the archives of the drives of %s would have more than %v%s, the limit", fault.Show(owner), quantity.Size(s.perOwner), uploaded(beside)).WithHint("remove drives, or versions; the operator of the gateway can raise [drives] owner_size")
}

// fits numbers a version, and returns the drive as it is to be. It refuses one for which there is no room, or that is not expected.
func (s *driveStore) fits(ctx context.Context, u *upload, name string, v *storedVersion, last string) (*storedDrive, error) {
	others, err := u.others(ctx)
	if err != nil {
		return nil, err
	}
	all, _, err := s.all(ctx, u.owner)
	if err != nil {
		return nil, err
	}
	k, err := s.record(ctx, u.owner, name)
	if err != nil {
		return nil, err
	}
	if k == nil {
		k = &storedDrive{Owner: u.owner, Name: name}
	}
	number := 0
	if newest := k.version(0); newest != nil {
		number = newest.Version
	} else {
		k.Created = time.Now().UTC()
	}
	if last != "" && last != strconv.Itoa(number) {
		f := fault.Errorf(fault.Conflict, "the newest version of drive %s is now %d", fault.Show(name), number).WithHint("someone else has filled it meanwhile; look at the new version, and try again")
		f.Field, f.Value, f.Allowed = "if_version", last, strconv.Itoa(number)
		return nil, f
	}
	if number > 0 && k.version(0).Digest == v.Digest {
		return k, errSameContent
	}
	if number == 0 && len(all) >= maxDrives {
		return nil, fault.Errorf(fault.Exhausted, "%s would have more than %d drives in the fleet", fault.Show(u.owner), maxDrives).WithHint("remove some: boxctl drives rm")
	}
	k.Last++
	v.Version = k.Last
	k.Versions = append(k.Versions, *v)
	stored := map[string]int64{}
	for _, d := range append(slices.DeleteFunc(all, func(d *storedDrive) bool { return d.Name == name }), k) {
		for i := max(0, len(d.Versions)-maxDriveVersions); i < len(d.Versions); i++ {
			stored[d.Versions[i].Archive.ID] = d.Versions[i].Archive.Size
		}
	}
	if size, beside := together(stored, others); size > s.perOwner {
		return nil, s.tooMuch(u.owner, beside)
	}
	return k, nil
}

// putVersion makes the newest version of a drive known, which must not have changed. Of too many the oldest goes.
func (s *driveStore) putVersion(ctx context.Context, k *storedDrive) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var removed []archived
	for len(k.Versions) > maxDriveVersions {
		removed = append(removed, k.Versions[0].Archive)
		k.Versions = slices.Delete(k.Versions, 0, 1)
	}
	if err := s.remove(ctx, func() error { return s.write(ctx, k) }, removed...); err != nil {
		return changedDrive(k.Name, err)
	}
	return nil
}

// forgetVersion takes a version out of the record of its drive, whose archive was removed before it was known.
func (s *driveStore) forgetVersion(ctx context.Context, k *storedDrive, v *storedVersion) error {
	k.Versions = slices.DeleteFunc(k.Versions, func(o storedVersion) bool { return o.Version == v.Version })
	return s.write(ctx, k)
}

// neededDrives are those of the drives that a request names that the fleet has.
func (g *gateway) neededDrives(ctx context.Context, owner string, spec *sessionSpec) (list []neededDrive, err error) {
	if len(spec.Drives) == 0 {
		return nil, nil
	}
	s, err := g.readDrives(ctx)
	if err != nil {
		return nil, err
	}
	for _, ref := range spec.Drives {
		name, text, pinned := strings.Cut(ref, "@")
		number, err := strconv.Atoi(text)
		if pinned && (err != nil || number < 1) {
			continue // the node says what is wrong
		}
		k, err := s.record(ctx, owner, name)
		if err != nil {
			return nil, err
		}
		if k == nil {
			continue // a node may have it
		}
		switch v := k.version(number); {
		case v != nil:
			list = append(list, neededDrive{name: name, version: v.Version, digest: v.Digest, newest: number == 0})
		case spec.had:
		case len(k.Versions) == 0: // it was removed, though nodes may have it yet
			return nil, noDrive(name)
		default:
			return nil, k.noVersion(number)
		}
	}
	return list, nil
}

// hasDrive sees to it that a node has a version of a drive of the caller that the fleet has.
func (g *gateway) hasDrive(c *call, n *nodeState, want *neededDrive) error {
	key := n.Name + " " + want.key(c.pass.Name)
	if err := g.refusalOf(key); err != nil {
		return err
	}
	var drive api.Drive
	target := "/v1/drives/" + url.PathEscape(want.name)
	if _, err := g.get(c, n, target, &drive); err != nil {
		return err
	}
	s, err := g.readDrives(c.r.Context())
	if err != nil {
		return err
	}
	k, err := s.drive(c.r.Context(), c.pass.Name, want.name)
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return err
	}
	if err != nil || k.version(want.version) == nil || k.version(want.version).Digest != want.digest {
		return replaced("drive", want.name)
	}
	has := false
	for i := range drive.Versions {
		version := &drive.Versions[i]
		of := k.version(version.Version)
		switch {
		case version.Version < want.version || version.Version > want.version && !want.newest: // the session does not use it
		case of == nil || of.Digest != version.Digest:
			return fault.Errorf(fault.Conflict, "its version %d of drive %s is not one of the fleet", version.Version, fault.Show(want.name)).WithHint("remove it on that node: boxctl drives rm; or fill the drive at the gateway alone")
		default:
			has = true // or a newer one of the fleet
		}
	}
	if has {
		return nil
	}
	return g.sendDrive(c, n, s, k, want, target, key)
}

// sendDrive sends a node a version of a drive.
func (g *gateway) sendDrive(c *call, n *nodeState, s *driveStore, k *storedDrive, want *neededDrive, target, key string) error {
	v := k.version(want.version)
	query := url.Values{"as_version": {strconv.Itoa(v.Version)}, "digest": {v.Digest}, "into": {v.Into}}
	var created api.DriveVersion
	err := g.sendArchive(c, n, s.archiveStore, v.Archive, target+"/versions?"+query.Encode(), &created)
	if err == nil && (created.Version != v.Version || created.Digest != v.Digest) {
		err = unreached(n.Name, fmt.Errorf("asked for version %d of drive %s, %s, it has made %d, %s", v.Version, fault.Show(k.Name), v.Digest, created.Version, fault.Show(created.Digest)))
	}
	if err != nil {
		err = fmt.Errorf("it does not have the fleet's drive %s, and does not take it: %w", fault.Show(k.Name), err)
		g.refused(key, err)
		return err
	}
	g.events.add("drive_sent", n.Name, "", fmt.Sprintf("%s@%d of %s %s", k.Name, v.Version, k.Owner, v.Digest))
	return nil
}
