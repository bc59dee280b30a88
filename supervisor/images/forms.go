// SPDX-License-Identifier: Apache-2.0

package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// The parts of an image's documents that are read (OCI image specification; "docker image save").
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		Platform    *platform         `json:"platform"`
		Annotations map[string]string `json:"annotations"`
	}
	platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	index struct {
		Manifests []descriptor `json:"manifests"`
	}
	manifest struct {
		SchemaVersion int          `json:"schemaVersion"`
		Config        *descriptor  `json:"config"`
		Layers        []descriptor `json:"layers"`
	}
	saved struct {
		Config   string   `json:"Config"`
		RepoTags []string `json:"RepoTags"`
		Layers   []string `json:"Layers"`
	}
	document struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Config       struct {
			Env        []string `json:"Env"`
			WorkingDir string   `json:"WorkingDir"`
			User       string   `json:"User"`
			Entrypoint []string `json:"Entrypoint"`
			Cmd        []string `json:"Cmd"`
		} `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
)

// Annotations by which an index names its images.
const (
	refName       = "org.opencontainers.image.ref.name"
	containerName = "io.containerd.image.name"
)

// candidate is an image that an index refers to.
type candidate struct {
	descriptor
	names []string
}

func (o *opened) oci(ctx context.Context, name, arch string) (*ArchiveImage, error) {
	var layout struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := o.document("oci-layout", "", &layout); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(layout.Version, "1.") {
		return nil, bad("image layout version %s is not supported, only 1", fault.Show(layout.Version))
	}
	var top index
	if err := o.document("index.json", "", &top); err != nil {
		return nil, err
	}
	var found []candidate
	if err := o.collect(ctx, &top, nil, arch, maxNesting, &found); err != nil {
		return nil, err
	}
	c, err := choose(found, name, arch)
	if err != nil {
		return nil, err
	}
	return o.manifest(c, arch)
}

// collect finds the images for an architecture.
func (o *opened) collect(ctx context.Context, in *index, names []string, arch string, depth int, found *[]candidate) error {
	if depth == 0 {
		return bad("its indexes are nested too deep")
	}
	if len(*found)+len(in.Manifests) > maxIndexed {
		return bad("it has more than %d manifests", maxIndexed)
	}
	for _, d := range in.Manifests {
		if err := ctx.Err(); err != nil {
			return err
		}
		own := slices.Clone(names)
		for _, key := range []string{containerName, refName} {
			if n := d.Annotations[key]; n != "" {
				own = append(own, n)
			}
		}
		switch {
		case strings.HasSuffix(d.MediaType, ".image.index.v1+json") || strings.HasSuffix(d.MediaType, ".manifest.list.v2+json"):
			at, err := o.blob(&d)
			if err != nil {
				return err
			}
			var below index
			if err := o.document(at, d.Digest, &below); err != nil {
				return err
			}
			if err := o.collect(ctx, &below, own, arch, depth-1, found); err != nil {
				return err
			}
		case d.Platform != nil && (d.Platform.OS != "linux" || d.Platform.Architecture != arch):
		default:
			*found = append(*found, candidate{d, own})
		}
	}
	return nil
}

// blob returns the name of the file that a descriptor describes.
func (o *opened) blob(d *descriptor) (string, error) {
	name, err := digestName(d.Digest)
	if err != nil {
		return "", err
	}
	f, err := o.find(name)
	if err != nil {
		return "", err
	}
	if f.size != d.Size {
		return "", bad("%s has %d bytes, not %d", fault.Show(d.Digest), f.size, d.Size)
	}
	return name, nil
}

// choose finds the one image that the caller means.
func choose(found []candidate, name, arch string) (*candidate, error) {
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.Digest, b.Digest) })
	found = slices.CompactFunc(found, func(a, b candidate) bool { return a.Digest == b.Digest && slices.Equal(a.names, b.names) })
	if len(found) == 0 {
		return nil, bad("it has no image for linux/%s", arch)
	}
	var same []candidate
	var names []string
	for _, c := range found {
		names = append(names, c.names...)
		if slices.Contains(c.names, name) {
			same = append(same, c)
		}
	}
	switch {
	case len(found) == 1:
		return &found[0], nil
	case len(same) == 1:
		return &same[0], nil
	}
	slices.Sort(names)
	f := bad("it has %d images for linux/%s", len(found), arch)
	f.Field, f.Value, f.Allowed = "name", name, strings.Join(slices.Compact(names), ", ")
	return nil, f
}

func (o *opened) manifest(c *candidate, arch string) (*ArchiveImage, error) {
	at, err := o.blob(&c.descriptor)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := o.document(at, c.Digest, &m); err != nil {
		return nil, err
	}
	if m.SchemaVersion != 2 || m.Config == nil {
		return nil, bad("%s is not an image manifest of schema version 2", fault.Show(c.Digest))
	}
	if at, err = o.blob(m.Config); err != nil {
		return nil, err
	}
	img := &ArchiveImage{Form: OCI, Digest: c.Digest, Names: c.names}
	for i := range m.Layers {
		d := &m.Layers[i]
		at, err := o.blob(d)
		if err != nil {
			return nil, err
		}
		f, err := o.find(at)
		if err != nil {
			return nil, err
		}
		img.Layers = append(img.Layers, Layer{Digest: d.Digest, from: o.from, at: f.at, size: f.size})
	}
	return img, o.configure(img, at, m.Config.Digest, arch)
}

// configure reads the configuration of an image, which lists its layers.
func (o *opened) configure(img *ArchiveImage, at, digest, arch string) error {
	var d document
	if err := o.document(at, digest, &d); err != nil {
		return err
	}
	switch {
	case d.OS != "linux" || d.Architecture != arch:
		return bad("it is for %s, not for linux/%s", fault.Show(d.OS+"/"+d.Architecture), arch)
	case !d.valid():
		return bad("its configuration has too many texts, or texts with NUL")
	case len(img.Layers) == 0 || len(img.Layers) > maxLayers:
		return bad("it has %d layers: must have 1 to %d", len(img.Layers), maxLayers)
	case len(d.RootFS.DiffIDs) != len(img.Layers):
		return bad("its configuration has %d layers, its manifest %d", len(d.RootFS.DiffIDs), len(img.Layers))
	}
	for i, id := range d.RootFS.DiffIDs {
		if _, err := digestName(id); err != nil {
			return err
		}
		img.Layers[i].DiffID = id
	}
	img.Config = ImageConfig{Architecture: d.Architecture, Env: d.Config.Env, WorkingDir: d.Config.WorkingDir, User: d.Config.User, Entrypoint: d.Config.Entrypoint, Cmd: d.Config.Cmd}
	return nil
}

// valid reports whether programs could be started with the configuration.
func (d *document) valid() bool {
	const limit = 128 << 10
	size := 0
	for _, text := range slices.Concat(d.Config.Env, d.Config.Entrypoint, d.Config.Cmd, []string{d.Config.WorkingDir, d.Config.User}) {
		if size += len(text) + 1; size > limit || strings.Contains(text, "\x00") {
			return false
		}
	}
	return true
}

func (o *opened) docker(name, arch string) (*ArchiveImage, error) {
	var list []saved
	if err := o.document("manifest.json", "", &list); err != nil {
		return nil, err
	}
	var names []string
	i := 0
	for n := range list {
		names = append(names, list[n].RepoTags...)
		if slices.Contains(list[n].RepoTags, name) {
			i = n
		}
	}
	if len(list) != 1 && (len(list) == 0 || !slices.Contains(list[i].RepoTags, name)) {
		f := bad("it has %d images", len(list))
		f.Field, f.Value, f.Allowed = "name", name, strings.Join(names, ", ")
		return nil, f
	}
	s := &list[i]
	digest := "sha256:" + strings.TrimSuffix(strings.TrimPrefix(s.Config, "blobs/sha256/"), ".json")
	if _, err := digestName(digest); err != nil {
		return nil, err
	}
	img := &ArchiveImage{Form: Docker, Digest: digest, Names: s.RepoTags}
	for _, at := range s.Layers {
		f, err := o.find(at)
		if err != nil {
			return nil, err
		}
		img.Layers = append(img.Layers, Layer{from: o.from, at: f.at, size: f.size})
	}
	return img, o.configure(img, s.Config, digest, arch)
}

// committed makes an image of an archive of a root directory and a configuration. Its digest covers both.
func committed(ctx context.Context, from *os.File, config *ImageConfig) (*ArchiveImage, error) {
	img, err := (&opened{from: from}).rootfs(ctx)
	if err != nil {
		return nil, err
	}
	var d document
	c := &d.Config
	d.Architecture, d.OS, d.RootFS.DiffIDs = config.Architecture, "linux", []string{img.Digest}
	c.Env, c.WorkingDir, c.User, c.Entrypoint, c.Cmd = config.Env, config.WorkingDir, config.User, config.Entrypoint, config.Cmd
	if !d.valid() {
		return nil, fault.Field("env", fault.Word("too long"), "at most 128 KiB, without NUL")
	}
	data, err := json.Marshal(&d)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	img.Form, img.Digest, img.Config = commit, "sha256:"+hex.EncodeToString(sum[:]), *config
	return img, nil
}
