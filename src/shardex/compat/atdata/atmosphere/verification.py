"""Verifications of lenses as records; who verifies is the account that has the record."""

from typing import Any

from shardex.compat.atdata.atmosphere._lexicon_types import LexCodeHash, LexCodeReference, LexLensVerification
from shardex.compat.atdata.atmosphere._publishing import Loader, Publisher
from shardex.compat.atdata.atmosphere._types import AtUri

__all__ = ["VerificationLoader", "VerificationPublisher"]


class VerificationPublisher(Publisher):
    """Publishes verifications of lenses."""

    PROCEDURE = "publishLensVerification"

    def publish(
        self,
        *,
        lens_uri: str,
        lens_commit: str,
        verification_method: str,
        code_hash: LexCodeHash | None = None,
        proof_ref: LexCodeReference | None = None,
        description: str | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish that a version of a lens, by its CID, was verified, for example by "codeReview"."""
        record = LexLensVerification(lens_uri, lens_commit, verification_method)
        record.code_hash, record.proof_ref, record.description = code_hash, proof_ref, description
        return self._create(record, rkey)


class VerificationLoader(Loader):
    """Loads verifications of lenses."""

    KIND, CALLED, TYPE = "lensVerification", "lensVerification", LexLensVerification

    def get_typed(self, uri: str | AtUri) -> LexLensVerification:
        """Return a verification as a `LexLensVerification`."""
        return LexLensVerification.from_record(self.get(uri))

    def list_for_lens(self, lens_uri: str, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the verifications of a lens by an account, by default the own one."""
        return self._matching(repo, {"lens": lens_uri}, limit)

    def find_by_method(self, method: str, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the verifications by a method."""
        return self._matching(repo, {"verificationMethod": method}, limit)
