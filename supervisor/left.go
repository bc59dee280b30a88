// SPDX-License-Identifier: Apache-2.0

package supervisor

import "slices"

// Left is what an earlier boxd has left behind.
type Left struct {
	Living   []string           // keys of boxes
	Sessions map[string]string  // session keys of those with a record, by the keys of their boxes
	Records  map[string]*Record // by session key; unreadable ones are left out
}

// All reads all records. A record that cannot be read now, but maybe later, is an error: it is not known which box it is of.
func (d *Records) All(passing func(error) bool) (*Left, error) {
	l := &Left{Sessions: map[string]string{}, Records: map[string]*Record{}}
	keys, err := d.Keys()
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		r, err := d.Read(key)
		switch {
		case err == nil:
			l.Sessions[r.boxKey()], l.Records[key] = key, r
		case passing(err):
			return nil, err
		default:
			l.Sessions[key] = key // whoever reads it again gets the error
		}
	}
	return l, nil
}

// Of returns the record of the session that a box belongs to, if it can be read.
func (l *Left) Of(box string) *Record { return l.Records[l.Sessions[box]] }

// Lives reports whether the session of a box is to be adopted.
func (l *Left) Lives(box string) bool {
	r := l.Of(box)
	return l.Sessions[box] != "" && !l.Stopped(box) && slices.Contains(l.Living, box) && (r == nil || !r.Over())
}

// Stopped reports whether the session of a box is stopped, so that its files must be kept.
func (l *Left) Stopped(box string) bool {
	r := l.Of(box)
	return r != nil && r.Stopped != nil && !r.Over()
}

// Over reports whether a session ended with the boxd that wrote its record.
func (r *Record) Over() bool { return r.OneShot || r.Ending } // the caller of a one-shot session is gone
