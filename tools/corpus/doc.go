// Package corpus measures the estimator of prompts against the vocabulary that
// providers count with. It is a module of its own, so that the vocabulary (some
// 40 seconds to compile) is neither built nor required by anything else.
//
// It must not be imported, and must know nothing of the store: the rule by which
// factors move is applied here to samples in a row.
package corpus
