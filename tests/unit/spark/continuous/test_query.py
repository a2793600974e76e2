"""What a query's handle says where something fails."""

from __future__ import annotations

from headgate.errors import HeadgateError
from headgate.spark.continuous.query import given_up


def test_who_waited_in_vain_for_a_checkpoint_reads_why_and_what_the_query_does() -> None:
    reason = "nobody waits for it any longer; what was written of the savepoint may still be in s3://b/s: denied"
    withdrawn = HeadgateError(f"The checkpoint did not complete: {reason}", reason=reason)
    assert given_up(5, withdrawn, goes_on=True).message == (
        f"The checkpoint was not complete after 5 seconds: {reason}. The query continues as before."
    )
    over = HeadgateError("The query ended before the checkpoint was complete.")
    for error, goes_on in ((over, False), (TimeoutError(), False), (TimeoutError(), True)):
        assert "continues" not in given_up(5, error, goes_on=goes_on).message
    assert given_up(5, over, goes_on=False).message.endswith(f"after 5 seconds: {over.message}")
