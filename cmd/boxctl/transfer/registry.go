// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// PullOptions say what is fetched, and how.
type PullOptions struct {
	Ref         string // such as python:3.12, which is of Docker Hub, or registry.example/team/tools@sha256:…
	Platform    string // such as linux/arm64; "": Linux on what boxctl runs on
	Insecure    bool   // the registry may be asked without TLS
	Credentials RegistryCredentials
	Patience    time.Duration // how long a registry may be silent; 0: 30 seconds
	roots       *x509.CertPool
}

// Bounds of what a registry says.
const (
	maxConfig = 4 << 20
	maxLayers = 512
	maxLayer  = 1 << 40
)

// Image is one that a registry has. It must be closed.
type Image struct {
	Name      string // as it was asked for, with its tag
	Digest    string // of its manifest
	Size      int64  // of all that is to be fetched, in bytes
	image     v1.Image
	manifest  *v1.Manifest
	raw       []byte
	transport *registryTransport
}

// Close ends the use of an image, and its connections.
func (i *Image) Close() { i.transport.close() }

// FindImage asks a registry for an image: its manifest and its configuration, which are verified.
func FindImage(ctx context.Context, o *PullOptions) (_ *Image, err error) {
	ref, err := name.ParseReference(o.Ref, referenceOptions(o.Insecure)...)
	if err != nil {
		return nil, fmt.Errorf("pull: %s: want a name such as python:3.12 or registry.example/team/tools:1, or one with @sha256: and a digest", plain(err.Error(), maxPullText))
	}
	if d, ok := ref.(name.Digest); ok && !strings.HasPrefix(d.DigestStr(), "sha256:") {
		return nil, fmt.Errorf("pull %s: want a digest of sha256", o.Ref)
	}
	platform, err := v1.ParsePlatform(o.Platform)
	if o.Platform == "" {
		platform, err = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	if err != nil || platform.OS == "" || platform.Architecture == "" {
		return nil, fmt.Errorf("pull %s: platform %q: want one such as linux/amd64 or linux/arm64", o.Ref, o.Platform)
	}
	auth, err := o.Credentials.of(ref.Context())
	if err != nil {
		return nil, err
	}
	timeout := o.Patience
	if timeout == 0 {
		timeout = defaultTimeout
	}
	transport := newRegistryTransport(ref.Context().RegistryStr(), o.Insecure, timeout, o.roots)
	defer func() {
		if err != nil {
			transport.close()
			err = pullRefused(o.Ref, err)
		}
	}()
	found, err := remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(transport), remote.WithAuth(auth), remote.WithPlatform(*platform), remote.WithUserAgent("boxctl"), remote.WithJobs(1))
	if err != nil {
		return nil, err
	}
	i := &Image{Name: nameOf(o.Ref, ref), transport: transport}
	if i.image, err = found.Image(); err != nil {
		return nil, errors.Join(err, offers(found))
	}
	return i, i.examine(platform)
}

// referenceOptions are the rules for a name; what is left out of it is Docker's.
func referenceOptions(insecure bool) []name.Option {
	if insecure {
		return []name.Option{name.WeakValidation, name.Insecure}
	}
	return []name.Option{name.WeakValidation}
}

// nameOf is what the image is called here: what was asked for, with the tag that was meant.
func nameOf(requested string, ref name.Reference) string {
	if tag, ok := ref.(name.Tag); ok && !strings.HasSuffix(requested, ":"+tag.TagStr()) {
		return requested + ":" + tag.TagStr()
	}
	return requested
}

// offers names the platforms that there are, for whom the one that was meant is not.
func offers(found *remote.Descriptor) error {
	if !found.MediaType.IsIndex() {
		return nil
	}
	list, err := v1.ParseIndexManifest(bytes.NewReader(found.Manifest))
	if err != nil {
		return nil //nolint:nilerr // what is wrong has been said
	}
	var names []string
	for n := range list.Manifests {
		if p := list.Manifests[n].Platform; p != nil && p.OS == "linux" {
			names = append(names, p.String())
		}
	}
	return fmt.Errorf("there is %s", strings.Join(names, ", "))
}

// examine reads what an image is, and refuses what boxd would, before anything large is fetched.
func (i *Image) examine(want *v1.Platform) error {
	var err error
	if i.raw, err = i.image.RawManifest(); err != nil {
		return err
	}
	if i.manifest, err = i.image.Manifest(); err != nil {
		return err
	}
	m := i.manifest
	switch {
	case m.SchemaVersion != 2:
		return errors.New("its manifest is not of version 2")
	case m.Config.Size < 0 || m.Config.Size > maxConfig:
		return fmt.Errorf("its configuration has %d bytes: must be at most %d", m.Config.Size, maxConfig)
	case len(m.Layers) == 0 || len(m.Layers) > maxLayers:
		return fmt.Errorf("it has %d layers: must be 1 to %d", len(m.Layers), maxLayers)
	}
	i.Size = m.Config.Size
	for n := range m.Layers {
		l := &m.Layers[n]
		if l.Size < 0 || l.Size > maxLayer || len(l.URLs) > 0 || l.Digest.Algorithm != "sha256" {
			return fmt.Errorf("its layer %s is foreign, too large or has no sha256 digest", l.Digest)
		}
		i.Size += l.Size
	}
	config, err := i.image.ConfigFile()
	if err != nil {
		return err
	}
	if config.OS != want.OS || config.Architecture != want.Architecture {
		return fmt.Errorf("it is for %s/%s, not for %s/%s", config.OS, config.Architecture, want.OS, want.Architecture)
	}
	digest, err := i.image.Digest()
	i.Digest = digest.String()
	return err
}

// Write fetches the image and writes it as an OCI image layout, a tar archive. Every digest is verified on the way.
func (i *Image) Write(w io.Writer) error {
	return pullRefused(i.Name, i.write(tar.NewWriter(w)))
}

func (i *Image) write(w *tar.Writer) error {
	kind, err := i.image.MediaType()
	if err != nil {
		return err
	}
	top, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{map[string]any{
		"mediaType": kind, "digest": i.Digest, "size": len(i.raw), "annotations": map[string]string{"org.opencontainers.image.ref.name": i.Name},
	}}})
	if err != nil {
		return err
	}
	config, err := i.image.RawConfigFile()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", top}, {blob(i.Digest), i.raw}, {blob(i.manifest.Config.Digest.String()), config}} {
		if err := putEntry(w, f.name, int64(len(f.data)), bytes.NewReader(f.data)); err != nil {
			return err
		}
	}
	written := map[v1.Hash]bool{i.manifest.Config.Digest: true}
	for n := range i.manifest.Layers {
		d := &i.manifest.Layers[n]
		if written[d.Digest] {
			continue // the same twice, as empty ones are
		}
		written[d.Digest] = true
		if err := i.layer(w, d); err != nil {
			return err
		}
	}
	return w.Close()
}

func (i *Image) layer(w *tar.Writer, d *v1.Descriptor) error {
	l, err := i.image.LayerByDigest(d.Digest)
	if err != nil {
		return err
	}
	r, err := l.Compressed() // its end is an error if the digest is another
	if err != nil {
		return err
	}
	return errors.Join(putEntry(w, blob(d.Digest.String()), d.Size, r), r.Close())
}

func blob(digest string) string { return strings.Replace("blobs/"+digest, ":", "/", 1) }

// putEntry writes one file of the archive.
func putEntry(w *tar.Writer, name string, size int64, r io.Reader) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	n, err := io.Copy(w, r)
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, not %d", name, n, size)
	}
	return err
}

// maxPullText is as much of an error as one reads, in bytes.
const maxPullText = 600

// pullRefused says of which image an error is, in one line for a terminal, and what may help.
func pullRefused(ref string, err error) error {
	if err == nil {
		return nil
	}
	text := "pull " + ref + ": " + plain(err.Error(), maxPullText)
	if e, ok := errors.AsType[*transport.Error](err); ok && (e.StatusCode == 401 || e.StatusCode == 403) {
		text += " (check --username and --password-stdin, or --authfile; the image may not exist)"
	}
	return &refusal{Text: text, Err: err}
}
