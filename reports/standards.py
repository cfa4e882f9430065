"""Standards with which evidence is compared: their sources, and their requirements in our words."""

EDPB = (
    "EDPB Opinion 28/2024 (17 December 2024) asks how likely it is that personal data can be extracted from a model or "
    "obtained through queries. The shares below are one input to that assessment, and no answer to it."
)
NIST = (
    "The terms are those of NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees (March 2025, "
    "doi 10.6028/NIST.SP.800-226)."
)
AISVS = (
    "Membership-Inference and Model-Inversion Mitigation, in version 1.0 (2026) of the OWASP Artificial Intelligence "
    "Security Verification Standard (OWASP/AISVS on GitHub, 1.0/en/0x10-C11-Adversarial-Robustness.md)."
)
C11_2 = {
    ", objective": "little is learned of whether a record was trained on, and private data are not reconstructed",
    ".1": "inferred sensitive attributes are not returned (level 1)",
    ".2": "limits on queries fit the threat of extraction, for each user and in all (level 1)",
    ".3": "outputs are calibrated, so that the model is less overconfident (level 2)",
    ".4": "sensitive data are trained on with differentially private optimization (level 2)",
    ".5": "simulated membership inference is no better than random guessing (level 3)",
}
"""End of the requirement's name -> what it asks."""
MEMBERSHIP = "member_inference"  # the attack on membership of the training data
UNRECOVERED = "no attack on the records themselves gave a number"
