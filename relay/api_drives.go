// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"io"
	"net/http"
	"net/url"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
	"github.com/boxd-dev/boxd/supervisor/volumes"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Default sizes of answers.
const (
	defaultEntries = 200
	defaultText    = 4096
)

// listDrives lists the caller's drives.
func listDrives(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	out := api.DriveList{Drives: []api.Drive{}}
	for _, d := range c.Drives.List(owner.Name) {
		out.Drives = append(out.Drives, drive(&d))
	}
	return out, nil
}

// getDrive describes a drive.
func getDrive(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	d, err := c.Drives.Get(owner.Name, c.Path.Drive)
	if err != nil {
		return nil, err
	}
	return drive(&d), nil
}

// changeDrive changes how a drive is kept.
func changeDrive(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.DriveChange
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	d, err := c.Drives.Keep(owner.Name, c.Path.Drive, volumes.RetentionChange{Versions: in.KeepVersions, Age: in.KeepAge, Push: in.Push})
	if err != nil {
		return nil, err
	}
	return drive(&d), nil
}

// drivePushed records that a version is stored elsewhere too.
func drivePushed(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	var in api.DrivePushed
	if err := c.decodeBody(&in, maxSessionBody); err != nil {
		return nil, err
	}
	if in.Version < 1 {
		return nil, fault.Field("version", in.Version, "a version number")
	}
	d, err := c.Drives.Pushed(owner.Name, c.Path.Drive, in.Version)
	if err != nil {
		return nil, err
	}
	return drive(&d), nil
}

// deleteDrive removes a drive, or a version of it.
func deleteDrive(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	version, err := queryNumber(c.R.URL.Query(), "version", 0, 1)
	if err != nil {
		return nil, err
	}
	return noContent{}, c.Drives.Remove(owner.Name, c.Path.Drive, version)
}

// fillDrive makes the next version of the request body, or of a directory of a session.
func fillDrive(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	f := &volumes.Filling{Into: query.Get("into")}
	if f.Add, err = queryFlag(query, "add"); err != nil {
		return nil, err
	}
	if query.Has("if_version") {
		last, err := queryNumber(query, "if_version", 0, 0)
		if err != nil {
			return nil, err
		}
		f.IfLast = &last
	}
	if err := delivered(query, f); err != nil {
		return nil, err
	}
	var v volumes.Version
	var isNew bool
	path, err := promoted(query)
	switch {
	case err != nil:
		return nil, err
	case path == "":
		v, isNew, err = c.Drives.Fill(c.Context(), owner.Name, c.Path.Drive, f, conns.ArchiveBody(c.W, c.R))
	default:
		v, isNew, err = fromSession(c, owner.Name, f, path)
	}
	if err != nil {
		return nil, err
	}
	if isNew {
		return Created{Body: version(&v)}, nil
	}
	return version(&v), nil
}

// delivered reads what a gateway says of a version that it delivers, or asks about.
func delivered(query url.Values, f *volumes.Filling) (err error) {
	f.Digest = query.Get("digest")
	if f.DryRun, err = queryFlag(query, "dry_run"); err == nil {
		f.Number, err = queryNumber(query, "as_version", 0, 1)
	}
	return err
}

// promoted returns the directory of a session to fill from; "": the request has an archive.
func promoted(query url.Values) (string, error) {
	path, output := query.Get("path"), query.Get("output_version")
	switch {
	case query.Get("session") == "":
		for _, name := range []string{"session", "path", "output_version"} {
			if query.Has(name) {
				return "", fault.Field(name, query.Get(name), "given with session").WithText("%s: give session, and path or output_version", name)
			}
		}
		return "", nil
	case (path == "") == (output == ""):
		return "", fault.Field("path", path, "a directory of the session, or left out with output_version")
	case path != "":
		return path, nil
	}
	return sessionfiles.OutputDir(output), policy.ValidSpaceName("output_version", output)
}

// fromSession fills a drive with a directory of a session, which is packed inside its box.
func fromSession(c *Call, who string, f *volumes.Filling, path string) (v volumes.Version, isNew bool, err error) {
	owner, err := c.Owner()
	if err != nil {
		return v, false, err
	}
	id := c.R.URL.Query().Get("session")
	s, err := c.Sup.Session(owner, id)
	if err != nil {
		return v, false, err
	}
	f.Origin = "session " + id + ", " + path
	err = packed(c.Context(), s, path, func(r io.Reader) error {
		v, isNew, err = c.Drives.Fill(c.Context(), who, c.Path.Drive, f, r)
		return err
	})
	return v, isNew && err == nil, err
}

// indexDrive lists the content of a version, page by page.
func indexDrive(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	v, err1 := queryNumber(query, "version", 0, 1)
	offset, err2 := queryNumber(query, "offset", 0, 0)
	limit, err3 := queryNumber(query, "limit", defaultEntries, 1)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err
	}
	ver, list, next, err := c.Drives.Index(owner.Name, c.Path.Drive, v, query.Get("prefix"), offset, limit)
	if err != nil {
		return nil, err
	}
	out := api.DriveIndex{Version: version(&ver), Entries: []api.DriveEntry{}, Next: next}
	for _, e := range list {
		x := api.DriveEntry{Path: e.Path, Type: "file", Size: e.Size, SHA256: e.SHA256, Executable: e.Program}
		if e.Dir {
			x.Type = "directory"
		}
		out.Entries = append(out.Entries, x)
	}
	return out, nil
}

// driveText returns a description for a prompt.
func driveText(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	v, err1 := queryNumber(query, "version", 0, 1)
	maximum, err2 := queryNumber(query, "bytes", defaultText, 1)
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	ver, text, err := c.Drives.Text(owner.Name, c.Path.Drive, v, maximum, supervisor.DriveTarget(c.Path.Drive))
	if err != nil {
		return nil, err
	}
	return api.DriveText{Version: ver.Number, Text: text}, nil
}

// archiveDrive sends a version as a tar archive.
func archiveDrive(c *Call) (any, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	v, err := queryNumber(c.R.URL.Query(), "version", 0, 1)
	if err != nil {
		return nil, err
	}
	if c.R.Method == http.MethodHead {
		_, tree, err := c.Drives.Take(owner.Name, c.Path.Drive, v)
		if err == nil {
			c.Drives.Release(tree)
			archiveHead(c.W.Header())
			c.limitReadTime()
			c.W.WriteHeader(http.StatusOK)
		}
		return nil, err
	}
	return nil, sendArchive(c.Context(), c, func(to io.Writer) error {
		_, err := c.Drives.Archive(owner.Name, c.Path.Drive, v, to)
		return err
	})
}

// switchDrive gives a session a version of a drive.
func switchDrive(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	v, err := queryNumber(c.R.URL.Query(), "version", 0, 1)
	if err != nil {
		return nil, err
	}
	k, isNew, err := c.Sup.Attachments.Switch(c.Context(), s, c.Path.Drive, v)
	if err != nil {
		return nil, err
	}
	if isNew {
		return Created{Body: driveAnswer(&k)}, nil
	}
	return driveAnswer(&k), nil
}

// detachDrive removes a drive from a session.
func detachDrive(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	force, err := queryFlag(c.R.URL.Query(), "force")
	if err != nil {
		return nil, err
	}
	return noContent{}, c.Sup.Attachments.Detach(c.Context(), s, c.Path.Drive, force)
}

func drive(d *volumes.Drive) api.Drive {
	out := api.Drive{Name: d.Name, CreatedAt: d.Created.UTC(), KeepVersions: d.KeepVersions, KeepAge: d.KeepAge, Push: d.Push, Versions: []api.DriveVersion{}}
	for i := range d.Versions {
		out.Versions = append(out.Versions, version(&d.Versions[i]))
	}
	return out
}

func version(v *volumes.Version) api.DriveVersion {
	return api.DriveVersion{
		Version: v.Number, Digest: v.Digest, Origin: v.Origin, Bytes: v.Bytes, Entries: v.Entries, CreatedAt: v.Created.UTC(), PushedAt: v.Pushed, Sessions: v.Held,
	}
}
