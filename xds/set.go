package xds

import (
	"fmt"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// set is what is served of one resource type. The cache sends a node what
// differs from what that node has; the set touches the cache only where
// content changed, so that an unchanged resource is never sent again.
type set struct {
	cache *cache.LinearCache
	// versions is the content hash of each resource served. It is the version
	// that nodes see, so their ACKs can be compared with it.
	versions map[string]string
}

func newSet(typeURL string) *set {
	return &set{cache: cache.NewLinearCache(typeURL), versions: make(map[string]string)}
}

// put serves the given resources; others stay as they are. It returns how many
// of them were new or changed. The resources must not be altered afterwards.
func put[R types.Resource](s *set, given map[string]R) (changed int, err error) {
	update := make(map[string]types.Resource)
	for name, res := range given {
		raw, err := cache.MarshalResource(res)
		if err != nil {
			return 0, fmt.Errorf("marshal %s: %w", name, err)
		}
		version := cache.HashResource(raw)
		if s.versions[name] == version {
			continue
		}
		s.versions[name] = version
		update[name] = res
	}
	if len(update) == 0 {
		return 0, nil
	}
	if err := s.cache.UpdateResources(update, nil); err != nil {
		return 0, fmt.Errorf("update cache: %w", err)
	}
	return len(update), nil
}

// remove stops serving the named resources.
func (s *set) remove(names []string) error {
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		delete(s.versions, name)
	}
	if err := s.cache.UpdateResources(nil, names); err != nil {
		return fmt.Errorf("update cache: %w", err)
	}
	return nil
}

// beyond returns the names served that are not among wanted.
func beyond[R any](s *set, wanted map[string]R) []string {
	var names []string
	for name := range s.versions {
		if _, ok := wanted[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}
