// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
)

// image returns the stored image that LangBot means; nil: the profile's own, since the profile locks it, or since there
// is none of the name and the operator accepts the profile's instead.
func (b *Boxes) image(requested string) (*string, error) {
	profiles, _ := b.Sup.Profiles()
	if requested == "" || slices.Contains(profiles[b.Profile].Locked, "image") {
		return nil, nil //nolint:nilnil // the profile's
	}
	for _, name := range calledHere(requested) {
		if root, err := b.Sup.Attachments.Root(name); err == nil && root != nil {
			return &name, nil
		}
	}
	if b.NeedImage {
		f := fault.Errorf(fault.Invalid, "no image %s on this host", fault.Show(requested))
		return nil, f.WithHint("the operator can run boxctl images pull, or set langbot.missing_image in box.toml")
	}
	b.Log.Info("the image that LangBot asks for is not on this host; using that of the profile", "image", fault.Show(requested))
	return nil, nil //nolint:nilnil // the profile's
}

// calledHere returns the names that an image may have in the store: as LangBot writes it, and, if it leaves out what
// Docker leaves out, as podman save writes it.
func calledHere(image string) []string {
	names := []string{image}
	first, rest, several := strings.Cut(image, "/")
	if last := image[strings.LastIndexByte(image, '/')+1:]; !strings.ContainsAny(last, ":@") {
		names = append(names, image+":latest")
	}
	if several && (strings.ContainsAny(first, ".:") || first == "localhost") && rest != "" {
		return names // of a registry
	}
	for _, name := range slices.Clone(names) {
		if !several {
			name = "library/" + name
		}
		names = append(names, "docker.io/"+name)
	}
	return names
}
